"""Collected bug reports about limits (LIM-*) and about what answers give away (SEC-*), replayed through the doors.

LIM-05 is in test_compression.py, what happens at the limit of messages itself in test_message_limits.py.
"""

from __future__ import annotations

import base64
import socket
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from tests.support.programs import wait_until
from tests.support.rest import post_binary, post_v2
from tests.support.stack import Stack
from tests.support.wire import GRPC_DOORS, INVALID_ARGUMENT, MODEL_INFER, NOT_FOUND, call_bytes, infer, rest_error

EVERY_GRPC_DOOR = pytest.mark.parametrize("door", GRPC_DOORS)
FIVE_MIB, TWENTY_FIVE_MIB = 1310720, 6553600
"""In elements of FP32."""
MAX_TEXT_BYTES = 4096


def request(model: str, *shape: int, name: str = "X") -> pb.ModelInferRequest:
    inputs = [{"name": name, "datatype": "FP32", "shape": shape}]
    raw = np.arange(int(np.prod(shape)), dtype=np.float32).tobytes()
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=[raw])


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("count", [FIVE_MIB, TWENTY_FIVE_MIB])
def test_lim_01_more_than_4_mib_by_default_over_grpc(stack: Stack, door: str, count: int) -> None:
    message = request("id_fp32", 1, count)
    assert infer(stack.addresses, door, message).infer_response().raw_output_contents[0] == message.raw_input_contents[0]


@pytest.mark.parametrize("count", [FIVE_MIB, TWENTY_FIVE_MIB])
def test_lim_01_more_than_4_mib_by_default_over_rest(stack: Stack, count: int) -> None:
    raw = np.arange(count, dtype=np.float32).tobytes()
    reply = post_binary(stack, "id_fp32", [("X", "FP32", [1, count], raw)], parameters={"binary_data_output": True})
    assert reply.content.endswith(raw)
    if count == FIVE_MIB:
        assert post_v2(stack, "id_fp32", [("X", "FP32", [1, count], [0.5] * count)]).json()["outputs"][0]["data"] == [0.5] * count


@pytest.mark.parametrize("http2", [False, True], ids=["http/1.1", "http/2"])
@pytest.mark.parametrize("count", [500_000, 5_000_000])
def test_lim_03_a_large_answer_is_whole(stack: Stack, count: int, http2: bool) -> None:
    n = {"name": "N", "datatype": "INT64", "shape": [1]}
    with httpx.Client(base_url=stack.addresses.edge_url, http1=not http2, http2=http2, timeout=40) as client:
        v2 = client.post("/v2/models/big_out/infer", json={"inputs": [{**n, "data": [count]}]})
        assert v2.json()["outputs"][0]["data"] == [count] * count
        body = {"model": "big_out", "inputs": [{**n, "int64_values": [count]}], "encoding": "TENSOR_ENCODING_VALUES"}
        v1 = client.post("/v1/predict", json=body)
        if v1.status_code == 200:
            assert v1.json()["outputs"][0]["float_values"] == [count] * count
        else:
            rest_error(v1, v1.status_code)
            assert count > 500_000


@pytest.mark.parametrize("size", [2 << 20, 8 << 20])
def test_lim_04_a_transcoded_field_above_1_mib(stack: Stack, size: int) -> None:
    raw = bytes(range(256)) * (size // 256)
    tensor: dict[str, Any] = {"name": "X", "shape": [1, size], "raw": base64.b64encode(raw).decode()}
    reply = httpx.post(f"{stack.addresses.edge_url}/v1/predict", json={"model": "id_uint8", "inputs": [tensor]}, timeout=40)
    assert base64.b64decode(reply.json()["outputs"][0]["raw"]) == raw


def test_lim_04_a_million_transcoded_numbers(stack: Stack) -> None:
    tensor = {"name": "X", "shape": [1, 1_000_000], "float_values": [0.5] * 1_000_000}
    body = {"model": "id_fp32", "inputs": [tensor], "encoding": "TENSOR_ENCODING_RAW"}
    reply = httpx.post(f"{stack.addresses.edge_url}/v1/predict", json=body, timeout=40)
    assert base64.b64decode(reply.json()["outputs"][0]["raw"]) == np.full(1_000_000, 0.5, np.float32).tobytes()


def long_requests() -> dict[str, tuple[pb.ModelInferRequest, int]]:
    surplus = request("id_fp32", 1, 1)
    for number in range(3000):
        surplus.inputs.add(name=f"unknown-input-{number:06}", datatype="FP32", shape=[1, 1])
        surplus.raw_input_contents.append(b"\0" * 4)
    return {
        "model": (request("m" * 30_000, 1, 1), NOT_FOUND),
        "input": (request("id_fp32", 1, 1, name="n" * 30_000), INVALID_ARGUMENT),
        "inputs": (surplus, INVALID_ARGUMENT),
        "emoji": (request("\U0001f600" * 5000, 1, 1), NOT_FOUND),
    }


@EVERY_GRPC_DOOR
@pytest.mark.parametrize(("message", "code"), long_requests().values(), ids=long_requests())
def test_lim_09_a_long_name_makes_no_long_text(stack: Stack, door: str, message: pb.ModelInferRequest, code: int) -> None:
    answer = infer(stack.addresses, door, message)
    assert answer.code == code
    assert 0 < len(answer.text.encode()) < MAX_TEXT_BYTES


def test_lim_12_thousands_of_calls_on_one_connection(stack: Stack) -> None:
    """Each is answered rightly or refused; so many at once are above the bound of what may wait."""
    message = request("id_fp32", 1, 1000)
    for target in (stack.addresses.node_grpc, stack.addresses.edge_grpc):
        wait_until(lambda: stack.get("/v2/health/ready").status_code == 200, "the edge sees the node, whatever it went through before")
        with grpc.insecure_channel(target) as channel:
            call: Any = channel.unary_unary(MODEL_INFER, response_deserializer=pb.ModelInferResponse.FromString)
            futures = [call.future(message.SerializeToString(), timeout=30) for _ in range(3000)]
            codes = {future.code() for future in futures}
            served = [future.result() for future in futures if future.code() is grpc.StatusCode.OK]
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert served
        assert all(response.raw_output_contents[0] == message.raw_input_contents[0] for response in served)


@pytest.mark.parametrize("length", ["99999999999999999999", "-1", "abc"])
def test_lim_13_a_content_length_that_is_none(stack: Stack, length: str) -> None:
    assert _raw(stack, f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n").startswith("HTTP/1.1 400")


@pytest.mark.parametrize("path", ["/predict", "/v2/models/id_fp32/infer", "/v1/predict", "/v1/models/id_fp32:predict"])
def test_lim_13_an_upload_without_end_is_stopped_at_the_limit(stack: Stack, path: str) -> None:
    sent = 0

    def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1 << 20
            yield b" " * (1 << 20)

    try:
        reply = httpx.post(stack.addresses.edge_url + path, content=endless(), headers={"content-type": "application/json"}, timeout=40)
        rest_error(reply, 413)
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # Closed while the client was still sending: it need not have read the answer.
    assert sent < 128 << 20
    assert stack.get("/v2/health/live").status_code == 200


TRICKS = [
    "/v2/health/../repository/models/id_fp32/unload",
    "/v2/health/%2e%2e/repository/models/id_fp32/unload",
    "/v2/health/..%2frepository/models/id_fp32/unload",
    "//v2/repository/models/id_fp32/unload",
    "/v2/./repository/models/id_fp32/unload",
    "/V2/repository/models/id_fp32/unload",
    "/v2/repository/models/id_fp32/unload;x=1",
    "/v2/repository%2fmodels/id_fp32/unload",
    "/v2/repository/models/id_fp32/unload%00",
    "/v2/health/live/../../repository/models/id_fp32/unload?x",
    "\\v2\\repository\\models\\id_fp32\\unload",
    "http://localhost/v2/repository/models/id_fp32/unload",
]


@pytest.mark.parametrize("path", TRICKS)
def test_sec_05_no_spelling_of_a_path_walks_around_the_rule_on_management(stack: Stack, path: str) -> None:
    status = _raw(stack, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}").split(" ")[1]
    assert status in ("400", "403", "404", "405"), status
    assert stack.get("/v2/models/id_fp32/ready").status_code == 200


EVIL = ['\n{"level":"error"}', "\r\nX-Evil: 1", "\x1b[31m", "\0", "\u2028", "x" * 100_000]


@pytest.mark.parametrize("text", EVIL, ids=["newline", "crlf", "escape", "nul", "line separator", "long"])
def test_sec_12_control_characters_are_neither_logged_nor_become_headers(stack: Stack, text: str) -> None:
    logged = len(stack.program.output)
    ok = request("id_fp32", 1, 1)
    ok.id = text
    for door in GRPC_DOORS:
        for message in (ok, request(text, 1, 1), request("id_fp32", 1, 1, name=text)):
            answer = infer(stack.addresses, door, message)
            assert answer.code in (0, INVALID_ARGUMENT, NOT_FOUND)
            assert not set(answer.text) & set("\n\r\x1b\0\u2028")
    reply = post_v2(stack, "id_fp32", [(text, "FP32", [1, 1], [1])], id=text)
    rest_error(reply, 400)
    assert "x-evil" not in reply.headers
    lines = stack.program.output[logged:].splitlines()
    assert not [
        line for line in lines if line.startswith('{"level":"error"}') or "X-Evil" in line or "\x1b[31m" in line or len(line) > 4096
    ]


def test_sec_12_line_breaks_in_a_path(stack: Stack) -> None:
    answer = _raw(stack, "GET /v2/models/%0d%0aX-Evil:1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.split(" ")[1] in ("400", "404")
    assert "\r\nx-evil" not in answer.lower()


@EVERY_GRPC_DOOR
def test_sec_13_errors_tell_nothing_of_the_inside(stack: Stack, door: str) -> None:
    index = pb.ModelInferRequest(model_name="gather", inputs=[{"name": "I", "datatype": "INT64", "shape": [1, 1]}])
    index.raw_input_contents.append((99).to_bytes(8, "little"))
    answers = [
        infer(stack.addresses, door, message)
        for message in (index, request("badload", 1, 1), request("id_fails", 1, 1), request("id_fp32", 1, 2, 2), request("nope", 1))
    ]
    answers += [call_bytes(stack.addresses, door, b"", "/inference.GRPCInferenceService/Nope"), call_bytes(stack.addresses, door, b"\xff")]
    for answer in answers:
        assert not [word for word in ("Traceback", "/tmp", ".py", "0x", "onnxruntime::", "object at", "127.0.0.1") if word in answer.text]


@pytest.mark.parametrize("path", ["/v2/nope", "/v1/nope", "/nope", "/v2/models/badload/ready", "/v1/models/badload"])
def test_sec_13_answers_about_what_is_not_there_tell_nothing_of_the_inside(stack: Stack, path: str) -> None:
    text = stack.get(path).text
    assert not [word for word in ("Traceback", "/tmp", ".py", "0x", "object at", "127.0.0.1", "upstream") if word in text], text


def _raw(stack: Stack, text: str) -> str:
    """An HTTP/1.1 request as it stands, and all that comes back."""
    host, _, port = stack.addresses.edge_grpc.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(text.encode())
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    return received.decode(errors="replace")
