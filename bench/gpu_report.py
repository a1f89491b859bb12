"""Runs everything that needs a GPU and writes a report: ``python -m bench.gpu_report [--out DIRECTORY] [--only SECTION …]``.

For a machine with an NVIDIA GPU, its driver, onnxruntime-gpu and cuda-python. Takes some five minutes. A section that cannot run there says
so by name and why; one that fails shows with what, and the program then ends with 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from bench.gpu import onnx_models, sections, speed
from bench.gpu.timed_driver import TimedDriver
from core_grpc.backends.cuda import device as devices
from core_grpc.backends.gpus import visible_gpus

_PACKAGES = ("onnxruntime-gpu", "onnxruntime", "cuda-bindings", "nvidia-cudnn-cu13", "nvidia-cublas", "numpy", "tensorrt", "tensorrt-rtx")


class CannotRunError(Exception):
    """The machine lacks what a section needs."""


def machine() -> str:
    """What this ran on."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    lines = [f"- GPU: {gpu} (name, driver, memory, compute capability)" for gpu in gpus]
    lines += [f"- {speed.processors()} logical processors, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    return "\n".join([*lines, f"- {', '.join(versions)}", f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"])


def profiles() -> str:
    """Optimization profiles, which TensorRT's engines have."""
    capability = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    raise CannotRunError(
        f"profiles belong to TensorRT's engines, and no TensorRT executes on this machine (compute capability {capability}; TensorRT-RTX "
        "refuses to load engines on 9.0). How one is chosen is tested without a GPU (tests/unit/core_grpc/backends/cuda/test_profiles.py)"
    )


def main() -> int:
    """Entry point; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/reports/gpu"), help="where report.md and its plots go (default docs/reports/gpu)"
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="SECTION", help="some sections only; names as in the report")
    options = parser.parse_args()
    if not visible_gpus():
        sys.exit("this machine has no NVIDIA GPU: nothing of this report can run here")
    options.out.mkdir(parents=True, exist_ok=True)
    # The process's first GPU is opened with stamps; they cost nothing until they are asked for.
    devices._devices[0] = devices.CudaDevice(TimedDriver(0), 0)  # noqa: SLF001 (instead of the one that a model would open)
    with tempfile.TemporaryDirectory() as folder:
        figures = speed.Figures()
        repository = Path(folder, "models")
        model_file = onnx_models.write(repository, speed.MODEL, onnx_models.resnet50(), speed.CONFIG.format(count=1))
        parts: Mapping[str, Callable[[], str]] = {
            "Machine": machine,
            "Datatypes": sections.datatypes,
            "Profiles": profiles,
            "Dynamic shapes": sections.dynamic_shapes,
            "Concurrency": sections.concurrency,
            "The engine alone": lambda: speed.engine_alone(figures, model_file),
            "Callers inside the node": lambda: speed.inside_the_node(figures, repository),
            "Copies under executions": lambda: speed.overlap(repository, options.out),
            "Over loopback gRPC": lambda: speed.over_grpc(figures, repository),
            "Memory over 12,000 requests": sections.leaks,
            "Sticky error": sections.sticky_error,
        }
        wanted = {name: part for name, part in parts.items() if not options.only or name in options.only}
        texts = {name: _run(name, part) for name, part in wanted.items()}
        if figures.node:
            speed.plot_speed(figures, options.out / "speed.png")
    plot = "![Images a second](speed.png)\n\n" if figures.node else ""
    body = "\n\n".join(f"## {name}\n{text}" for name, (text, _) in texts.items())
    (options.out / "report.md").write_text(f"# GPU report\n\nWritten by `python -m bench.gpu_report`.\n\n{plot}{body}\n", encoding="utf-8")
    print(body)
    return 0 if all(is_good for _, is_good in texts.values()) else 1


def _run(name: str, part: Callable[[], str]) -> tuple[str, bool]:
    """The section's text, and whether it is as it should be."""
    began = time.perf_counter()
    try:
        text, is_good = part(), True
    except CannotRunError as error:
        text, is_good = f"Not run here: {error}.", True
    except Exception as error:  # noqa: BLE001 (one section must not keep the others from being written)
        traceback.print_exc()
        text, is_good = f"**Failed**: {type(error).__name__}: {str(error)[:600]}", False
    print(f"{name}: {'good' if is_good else 'FAILED'} after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return text, is_good


if __name__ == "__main__":
    sys.exit(main())
