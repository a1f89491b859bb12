"""Bad input that only one door can say: each has its status and a text that names the field, and the next request is right."""

from __future__ import annotations

import json

import grpc
import httpx
import pytest

from protos.inference import grpc_service_pb2 as pb
from tests.doors.test_vectors import GOOD, assert_answers
from tests.support.doors import DOORS
from tests.support.stack import Stack
from tests.support.wire import GRPC_DOORS, INVALID_ARGUMENT, call_bytes, infer, rest_error

FP32 = {"name": "X", "datatype": "FP32", "shape": [1, 1]}
BYTES = {"name": "X", "datatype": "BYTES", "shape": [1, 1]}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            pb.ModelInferRequest(
                model_name="id_fp32", inputs=[{**FP32, "contents": {"fp32_contents": [1]}}], raw_input_contents=[b"\0" * 4]
            ),
            ["contents field must not be specified", "'X'"],
        ),
        (pb.ModelInferRequest(model_name="id_fp32", inputs=[FP32], raw_input_contents=[b"\0" * 4] * 2), ["2 entries", "1 inputs"]),
        (pb.ModelInferRequest(model_name="id_bytes", inputs=[BYTES], raw_input_contents=[b"\xff\xff\xff\x7fa"]), ["'X'", "2147483647"]),
        (pb.ModelInferRequest(model_name="id_bytes", inputs=[BYTES], raw_input_contents=[b"\3\0\0\0ab"]), ["'X'", "3 bytes"]),
    ],
    ids=["raw and typed", "two entries for one", "huge length", "length beyond the end"],
)
@pytest.mark.parametrize("door", GRPC_DOORS)
def test_grpc_wire_traps(stack: Stack, door: str, message: pb.ModelInferRequest, words: list[str]) -> None:
    answer = infer(stack.addresses, door, message)
    assert answer.code == INVALID_ARGUMENT
    assert all(word in answer.text for word in words), answer.text
    assert_answers(DOORS["grpc-web"](stack.addresses, GOOD), GOOD)


@pytest.mark.parametrize("door", GRPC_DOORS)
def test_a_body_that_is_no_message(stack: Stack, door: str) -> None:
    answer = call_bytes(stack.addresses, door, b"\xff\xff\xff")
    assert (answer.code, answer.text) == (INVALID_ARGUMENT, "the request is not a 'inference.ModelInferRequest' message")
    assert_answers(DOORS["grpc edge raw"](stack.addresses, GOOD), GOOD)


def test_an_unknown_method_is_unimplemented_on_every_grpc_door(stack: Stack) -> None:
    for door in GRPC_DOORS:
        assert (
            call_bytes(stack.addresses, door, b"", "/inference.GRPCInferenceService/Nope").code == grpc.StatusCode.UNIMPLEMENTED.value[0]
        ), door


REST = {
    "v2": ("/v2/models/id_fp32/infer", "/v2/models/id_bytes/infer"),
    "v1": ("/v1/models/id_fp32:predict", "/v1/models/id_bytes:predict"),
}


@pytest.mark.parametrize("door", ["v1", "v2"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"inputs": null}',
        b'{"inputs": ',
        b"{'inputs': 1}",
        b'{"inputs": [1,]}',
        b"\x89PNG\xff\xfe",
        b"[" * 100_000,
    ],
    ids=["empty", "null", "list", "no inputs", "null inputs", "cut short", "single quotes", "trailing comma", "not text", "deep"],
)
def test_bodies_that_are_no_request(stack: Stack, door: str, body: bytes) -> None:
    reply = httpx.post(stack.addresses.edge_url + REST[door][0], content=body, headers={"content-type": "application/json"})
    rest_error(reply, 400)
    assert_answers(DOORS["v2 json"](stack.addresses, GOOD), GOOD)


@pytest.mark.parametrize("door", ["v1", "v2"])
def test_a_content_type_that_is_not_served_is_named(stack: Stack, door: str) -> None:
    reply = httpx.post(stack.addresses.edge_url + REST[door][0], content=b"<a/>", headers={"content-type": "text/xml"})
    assert "text/xml" in rest_error(reply, 400)


def test_bad_base64_is_named(stack: Stack) -> None:
    url = stack.addresses.edge_url
    reply = httpx.post(f"{url}/v1/models/id_bytes:predict", json={"inputs": {"X": [[{"b64": "!!"}]]}})
    assert "base64" in rest_error(reply, 400)
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1, 1], "bytes_values": ["!!"]}
    reply = httpx.post(f"{url}/v1/predict", json={"model": "id_bytes", "inputs": [tensor]})
    assert "bytes_values" in rest_error(reply, 400)


@pytest.mark.parametrize("value", ["-1", "abc", "0x10", "99999999999", "18446744073709551616", "", "5"])
def test_a_lying_header_length_is_refused(stack: Stack, value: str) -> None:
    header = json.dumps({"inputs": [{**FP32, "parameters": {"binary_data_size": 4}}]}).encode()
    headers = {"inference-header-content-length": value}
    reply = httpx.post(f"{stack.addresses.edge_url}/v2/models/id_fp32/infer", content=header + b"\0" * 4, headers=headers)
    rest_error(reply, 400)
    assert_answers(DOORS["v2 binary"](stack.addresses, GOOD), GOOD)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nope", 404),
        ("DELETE", "/v2/models/id_fp32", 404),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/nope/ready", 404),
    ],
)
def test_v2_paths_that_are_not_served_answer_in_the_form_of_v2(stack: Stack, method: str, path: str, status: int) -> None:
    rest_error(httpx.request(method, stack.addresses.edge_url + path), status)


@pytest.mark.parametrize("path", ["/v2/models/%00", "/v1/models/%00"])
def test_what_envoy_has_no_words_for_gets_some(stack: Stack, path: str) -> None:
    rest_error(httpx.get(stack.addresses.edge_url + path), 400)
