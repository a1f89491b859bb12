"""Streams over REST and gRPC-Web: each answer is there when it is made, and failures have their form. Ids are those of the case list."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from google.protobuf import json_format

from protos.tensorgate.v1 import inference_pb2 as tg
from tests.support.stack import Stack
from tests.triton.messages import counted, infer, predict, repeated


def watched(stack: Stack, request: tg.PredictRequest, accept: str) -> tuple[httpx.Response, list[tuple[bytes, float]]]:
    """The pieces of a REST watch as they came, and when."""
    body = json_format.MessageToDict(tg.WatchRequest(request=request), preserving_proto_field_name=True)
    began = time.monotonic()
    with httpx.stream("POST", f"{stack.addresses.edge_url}/v1/watch", json=body, headers={"accept": accept}, timeout=20) as response:
        pieces = [(piece, time.monotonic() - began) for piece in response.iter_raw()]
    return response, pieces


@pytest.mark.parametrize(
    ("accept", "kind", "start"),
    [("application/json", "application/x-ndjson", b""), ("text/event-stream", "text/event-stream", b"data: ")],
)
def test_watch_over_rest(triton_stack: Stack, accept: str, kind: str, start: bytes) -> None:
    response, pieces = watched(triton_stack, repeated([4, 5, 6], 400), accept)
    assert response.status_code == 200
    assert response.headers["content-type"] == kind
    assert pieces[-1][1] - pieces[0][1] > 0.2, "the first did not wait for the last, made 0.8 s later"
    lines = [line for line in b"".join(piece for piece, _ in pieces).splitlines() if line]
    assert all(line.startswith(start) for line in lines)
    messages = [json.loads(line.removeprefix(start)) for line in lines]
    assert [message["outcome"]["response"]["outputs"][0]["int_values"] for message in messages[:-1]] == [[4], [5], [6]]
    assert [message["final"] for message in messages] == [False, False, False, True]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_str_10_errors_of_transcoded_streams(triton_stack: Stack, accept: str) -> None:
    response, pieces = watched(triton_stack, predict("nope"), accept)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert json.loads(b"".join(piece for piece, _ in pieces))["code"] == 5
    response, pieces = watched(triton_stack, counted(5, fail_at=1), accept)
    last = json.loads(
        b"".join(piece for piece, _ in pieces).splitlines()[-1 if accept == "application/json" else -2].removeprefix(b"data: ")
    )
    assert last["final"] is True
    assert last["outcome"]["code"] == 13
    assert "RuntimeError: the model tired" in last["outcome"]["message"]


def web_frames(body: bytes) -> list[tuple[int, bytes]]:
    frames = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        frames.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return frames


def test_watch_over_grpc_web(triton_stack: Stack) -> None:
    message = tg.WatchRequest(request=repeated([4, 5, 6], 400)).SerializeToString()
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    url = f"{triton_stack.addresses.edge_url}/tensorgate.v1.InferenceService/Watch"
    body, first, last = b"", 0.0, 0.0
    with httpx.stream("POST", url, content=b"\0" + len(message).to_bytes(4, "big") + message, headers=headers, timeout=20) as response:
        for piece in response.iter_raw():
            last = time.monotonic()
            first = first or last
            body += piece
    *messages, trailers = web_frames(body)
    answers = [tg.WatchResponse.FromString(data) for _, data in messages]
    assert [list(answer.outcome.response.outputs[0].int_values) for answer in answers[:-1]] == [[4], [5], [6]]
    assert trailers[0] == 0x80
    assert b"grpc-status:0" in trailers[1].replace(b" ", b"")
    assert last - first > 0.2, "the first did not wait for the last, made 0.8 s later"


@pytest.mark.parametrize("path", ["/tensorgate.v1.InferenceService/Watch", "/inference.GRPCInferenceService/ModelInfer"])
def test_str_12_a_failure_without_an_answer_over_grpc_web(triton_stack: Stack, path: str) -> None:
    known = path.endswith("Watch")
    message = (tg.WatchRequest(request=predict("nope")) if known else infer("nope", [[1]])).SerializeToString()
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1", "origin": "http://localhost:3000"}
    body = b"\0" + len(message).to_bytes(4, "big") + message
    response = httpx.post(triton_stack.addresses.edge_url + path, content=body, headers=headers, timeout=20)
    assert response.status_code == 200
    told = response.headers.get("grpc-status") or response.content.decode("latin-1")
    assert told == "5" or "grpc-status:5" in told.replace(" ", "")
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "grpc-status" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize(("body", "wanted"), [(b"AAAAAAA=", "0"), (b"AAAAAAA", ""), (b"%%%", "")])
def test_str_11_grpc_web_text_framing(triton_stack: Stack, body: bytes, wanted: str) -> None:
    url = f"{triton_stack.addresses.edge_url}/inference.GRPCInferenceService/ServerLive"
    response = httpx.post(url, content=body, headers={"content-type": "application/grpc-web-text", "x-grpc-web": "1"}, timeout=5)
    if wanted:
        assert response.status_code == 200
        assert response.content
    else:
        assert response.status_code == 400 or response.headers["grpc-status"] in ("3", "13")


def test_predict_many_over_rest(triton_stack: Stack) -> None:
    item = {"model": "id_fp32", "inputs": [{"name": "X", "shape": [1, 1], "float_values": [3]}]}
    response = httpx.post(f"{triton_stack.addresses.edge_url}/v1/predict:many", json=[{"request": item}, {"request": {"model": "nope"}}])
    assert response.status_code == 200
    assert (response.json()["succeeded"], response.json()["failed"]) == (1, 1)


def test_generate(triton_stack: Stack) -> None:
    models = f"{triton_stack.addresses.edge_url}/v2/models"
    answer = httpx.post(f"{models}/id_fp32/generate", json={"id": "7", "X": [1, 2.5], "temperature": 0.5, "parameters": {"top": 3}})
    assert answer.json() == {"model_name": "id_fp32", "model_version": "1", "id": "7", "Y": [1.0, 2.5]}
    assert httpx.post(f"{models}/simple_identity/versions/1/generate", json={"INPUT0": "text"}).json()["OUTPUT0"] == "text"
    one = {"IN": [4], "DELAY": [0], "WAIT": 0}
    assert httpx.post(f"{models}/repeat_int32/generate", json=one).json()["OUT"] == 4
    for values in ([], [1, 2]):
        refused = httpx.post(f"{models}/repeat_int32/generate", json={"IN": values, "DELAY": [0] * len(values), "WAIT": 0})
        assert refused.status_code == 400
        assert "exactly 1 answer" in refused.json()["error"]
    for body, wanted in (({"X": "one"}, "'X'"), ({"Z": [1]}, "'Z' is no input"), ({"X": [1], "parameters": {"X": [1]}}, "twice")):
        refused = httpx.post(f"{models}/id_fp32/generate", json=body)
        assert refused.status_code == 400
        assert wanted in refused.json()["error"]


def test_generate_stream(triton_stack: Stack) -> None:
    models = f"{triton_stack.addresses.edge_url}/v2/models"
    began, times = time.monotonic(), []
    body = {"IN": [4, 5, 6], "DELAY": [400, 400, 400], "WAIT": 0}
    with httpx.stream("POST", f"{models}/repeat_int32/generate_stream", json=body, timeout=20) as response:
        events = []
        for piece in response.iter_raw():
            times.append(time.monotonic() - began)
            events += [json.loads(line.removeprefix(b"data: ")) for line in piece.splitlines() if line]
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [event["OUT"] for event in events] == [4, 5, 6]
    assert times[-1] - times[0] > 0.2, "the first did not wait for the last, made 0.8 s later"
    failed = httpx.post(f"{models}/count/generate_stream", json={"N": [5, 2, 1]}, timeout=20)
    assert failed.status_code == 200
    assert "RuntimeError: the model tired" in json.loads(failed.content.splitlines()[-2].removeprefix(b"data: "))["error"]
    assert httpx.post(f"{models}/nope/generate_stream", json={}).status_code == 404
    nothing = httpx.post(f"{models}/repeat_int32/generate_stream", json={"IN": [], "DELAY": [], "WAIT": 0})
    assert (nothing.status_code, nothing.content) == (200, b"")
