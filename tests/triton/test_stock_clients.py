"""NVIDIA's own client, unmodified, newest and two years old, every method of it, against both transports, on the node and at the edge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import triton_examples
from tests.support.stack import Stack

SUITE = Path(__file__).parent / "suite.py"
OLD_CLIENT = Path(sys.prefix) / "old-tritonclient" / "bin" / "python"
"""Made by ``make test``; its numpy has no wheels for Python 3.13 and later."""

INTERPRETERS = {"newest": Path(sys.executable), "2.53": OLD_CLIENT}


@pytest.mark.parametrize("release", INTERPRETERS)
@pytest.mark.parametrize(
    ("kind", "door"),
    [("grpc", "node"), ("grpc", "edge"), ("grpc.aio", "node"), ("grpc.aio", "edge"), ("http", "edge"), ("http.aio", "edge")],
)
def test_every_method(triton_stack: Stack, example_repository: Path, release: str, kind: str, door: str) -> None:
    if release != "newest" and sys.version_info >= (3, 13):
        pytest.skip("numpy below 2, which this release wants, has no wheels for this Python")
    address = triton_stack.addresses.node_grpc if door == "node" else triton_stack.addresses.edge_grpc
    command = [str(INTERPRETERS[release]), str(SUITE), kind, address, str(example_repository)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert finished.returncode == 0, f"after {finished.stdout.split()}: {finished.stderr[-3000:]}"
    assert finished.stdout.split()[-1] == "plugins"


FOR_CONTROL = ["--without", "simple_dyna_sequence", "--without", "simple_string_dyna_sequence"]


@pytest.mark.parametrize(("options", "count"), [([], 10), (FOR_CONTROL, 8), ([*FOR_CONTROL, "--without", "repeat_int32"], 7)])
def test_the_examples_are_as_many_as_the_model_control_scripts_want(tmp_path: Path, options: list[str], count: int) -> None:
    triton_examples.main([str(tmp_path), *options])
    assert len(list(tmp_path.glob("*/model.toml"))) == count
