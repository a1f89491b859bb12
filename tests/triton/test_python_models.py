"""User code that fails, through every kind of door, over both transports."""

from __future__ import annotations

import httpx
import pytest

from tests.support.stack import Stack


def ask(stack: Stack, order: int) -> httpx.Response:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [order, 1, 2, 3]}]}
    return httpx.post(f"{stack.addresses.edge_url}/v2/models/faults/infer", json=body, timeout=20)


@pytest.mark.parametrize(
    ("order", "status", "text"),
    [
        (1, 500, "model 'faults': ValueError: one is not served (model.py, line 14)"),
        (2, 400, "two is the caller's fault"),
        (3, 500, "model 'faults': its process exited with code 7 while it ran the request"),
        (4, 500, "model 'faults': an execution took longer than [python] timeout_s = 1.5"),
        (5, 500, "model 'faults': output 'Y': wanted FP32 (float32), got float64"),
        (8, 503, "come again"),
    ],
)
def test_faults(triton_stack: Stack, order: int, status: int, text: str) -> None:
    answer = ask(triton_stack, order)
    assert (answer.status_code, answer.json()) == (status, {"error": text})
    assert ask(triton_stack, 0).json()["outputs"][0]["data"] == [0, 1, 2, 3], "and the model goes on"


def test_what_it_prints_is_in_the_log(triton_stack: Stack) -> None:
    assert ask(triton_stack, 9).status_code == 200
    triton_stack.program.wait_for("model faults/1/0: printed by the model")
    triton_stack.program.wait_for("model faults/1/0: and to stderr")


@pytest.mark.parametrize("part", ["secret", "TENSORGATE"])
def test_no_error_tells_about_the_inside(triton_stack: Stack, part: str) -> None:
    for order in (1, 3, 5, 7):
        assert part not in ask(triton_stack, order).text
        assert "/" not in ask(triton_stack, order).json()["error"]
