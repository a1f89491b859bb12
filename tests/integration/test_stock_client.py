"""NVIDIA's own client, unmodified, against both transports, directly and through the edge.

In a process of its own: its protobuf messages have the names of ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import Stack

SCRIPTS = Path(__file__).parent / "stock_client_scripts"


def run(script: str, *arguments: str) -> object:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout)


@pytest.mark.parametrize("door", ["node", "edge"])
def test_grpc_client(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    assert run("grpc_client.py", target) == {
        "live": True,
        "ready": True,
        "model_ready": [True, False, False],
        "name": "tensorgate",
        "metadata": ["addsub_i32", "onnxruntime_onnx", ["INPUT0", "INPUT1"], ["-1", "16"]],
        "sum": list(range(1, 17)),
        "difference": list(range(-1, 15)),
        "strings": ["", "a", "\u20ac"],
        "bf16": [0.5, -2.0],
        "error": ["StatusCode.NOT_FOUND", "Request for unknown model: 'nope' is not found"],
        "async": 8,
        "deadline": "StatusCode.DEADLINE_EXCEEDED",
    }


@pytest.mark.parametrize("kind", ["http_client.py", "http_aio_client.py"])
def test_http_client(stack: Stack, kind: str) -> None:
    assert run(kind, stack.addresses.edge_grpc) == {
        "live": True,
        "ready": True,
        "model_ready": [True, False],
        "metadata": ["addsub_i32", ["INPUT0", "INPUT1"]],
        "binary": list(range(1, 17)),
        "json": list(range(-1, 15)),
        "strings": ["", "a", "\u20ac"],
        "error": "Request for unknown model: 'nope' is not found",
    }
