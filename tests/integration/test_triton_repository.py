"""A repository that was written for Triton is served as it is: by the node as a user starts it, asked by NVIDIA's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import Program
from tests.support.triton_repository import write_ensemble, write_sequence, write_simple

SCRIPT = Path(__file__).parent / "stock_client_scripts" / "triton_repository.py"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> dict[str, Any]:
    """What the client got, in a process of its own: its protobuf messages have the names of ours."""
    repository, port = tmp_path_factory.mktemp("triton"), free_port()
    write_simple(repository)
    write_ensemble(repository)
    write_sequence(repository)
    flags = ["--models", str(repository), "--port", str(port), "--transport", "grpcio"]
    with Program("tensorgate", "node", *flags, env={"TENSORGATE_DRAIN_NOTICE_S": "0"}) as node:
        node.wait_for("models ready")
        assert "serving: 4 of 4 models ready" in node.output
        assert "model simple version 3: config.pbtxt: no effect here: optimization.execution_accelerators" in node.output
        command = [sys.executable, str(SCRIPT), f"127.0.0.1:{port}"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert finished.returncode == 0, finished.stderr[-2000:]
        got: dict[str, Any] = json.loads(finished.stdout)
        return got


def test_dynamic_batching(answers: dict[str, Any]) -> None:
    assert answers["simple"] == {
        "platform": "onnxruntime_onnx",
        "versions": ["2", "3"],
        "shapes": [[-1, 16]] * 4,
        "max_batch_size": 8,
        "dims": [["16"], ["16"]],
        "policy": {"latest": {"num_versions": 2}},
        "file": "add_sub.onnx",
        "instances": 2,
        "delay_us": "20000",
        "without_effect": "optimization.execution_accelerators.cpu_execution_accelerator.name",
        "sums": [True] * 4,
        "differences": [0, -1, -2, -3],
        "top": "30:15:label 15",
        "batched": True,
    }


def test_ensemble(answers: dict[str, Any]) -> None:
    assert answers["ensemble"] == {"platform": "ensemble", "steps": ["simple", "simple"], "is_right": [True, True]}


def test_sequence(answers: dict[str, Any]) -> None:
    assert answers["sequence"] == {
        "sums": {"7": [101, 103, 106], "text": [110, 130, 160]},
        "refused": "StatusCode.INVALID_ARGUMENT",
        "inputs": ["INPUT"],
        "outputs": ["OUTPUT"],
        "candidates": 4,
        "idle_us": "5000000",
        "controls": ["START", "READY"],
        "states": ["INPUT_STATE"],
    }


def test_the_index_says_what_has_no_effect(answers: dict[str, Any]) -> None:
    assert answers["index"]["simple"].startswith("config.pbtxt: no effect here: optimization.execution_accelerators")
