"""What is committed and generated is what the sources give now."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("generator", ["protos/generate.py", "docs/generate.py"])
def test_generated_files_are_fresh(generator: str) -> None:
    result = subprocess.run([sys.executable, generator, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("generator", "generated"), [("protos/generate.py", "protos/trt/inference_service_pb2.pyi"), ("docs/generate.py", "docs/errors.md")]
)
def test_a_stale_file_is_seen(generator: str, generated: str, tmp_path: Path) -> None:
    for package in ("core_grpc", "rest_facade", "tensorgate"):
        (tmp_path / package).symlink_to(ROOT / package)
    for folder in ("protos", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with (tmp_path / generated).open("a") as changed:
        changed.write("\n")
    result = subprocess.run([sys.executable, generator, "--check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert generated in result.stderr
