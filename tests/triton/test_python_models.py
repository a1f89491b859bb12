"""User code that fails, through every kind of door, over both transports."""

from __future__ import annotations

import io
import wave

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


def recording(frames: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(b"\0\0" * frames)
    return file.getvalue()


def test_recordings_are_uploaded_like_photographs(triton_stack: Stack) -> None:
    models = f"{triton_stack.addresses.edge_url}/v2/models/frames"
    bare = httpx.post(f"{models}/infer", content=recording(1234), headers={"content-type": "audio/wav"})
    assert bare.json()["outputs"][0]["data"] == [1234]
    files = [("audio", ("a.wav", recording(5), "audio/wav")), ("audio", ("b.wav", recording(6), "audio/wav"))]
    assert httpx.post(f"{models}/infer", files=files).json()["outputs"][0]["data"] == [5, 6]
    url = f"{triton_stack.addresses.edge_url}/v1/models/frames:predict"
    assert httpx.post(url, content=recording(7), headers={"content-type": "audio/x-wav"}).json()["outputs"] == {"FRAMES": [[7]]}
    refused = httpx.post(f"{models}/infer", content=b"", headers={"content-type": "audio/wav"})
    assert refused.status_code == 400
    assert "empty" in refused.json()["error"]
