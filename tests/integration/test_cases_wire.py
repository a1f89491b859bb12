"""Collected bug reports about tensors on the wire (WIRE-*), replayed through every door that can say them.

What all doors can say is in tests/vectors, whose rows name their cases.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from core_grpc.types import Datatype
from protos.inference import grpc_service_pb2 as pb
from tests.doors.test_vectors import GOOD, assert_answers
from tests.integration.test_stock_client import run
from tests.support.doors import DOORS
from tests.support.rest import post_binary, post_v2
from tests.support.stack import Stack
from tests.support.wire import GRPC_DOORS, INVALID_ARGUMENT, NOT_FOUND, call_bytes, infer, rest_error

EVERY_GRPC_DOOR = pytest.mark.parametrize("door", GRPC_DOORS)
PROMPT_S = 1.0
"""The reports say 100 ms; a busy machine is given more, and a loop over four milliards of elements takes far longer."""


def tensor(name: str = "X", datatype: str = "FP32", shape: Any = (1, 4), **contents: Any) -> pb.ModelInferRequest.InferInputTensor:
    made = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(made.contents, field).extend(values)
    return made


def request(model: str, *inputs: pb.ModelInferRequest.InferInputTensor, raw: tuple[bytes, ...] = (), **rest: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw, **rest)


def assert_refused(stack: Stack, door: str, message: pb.ModelInferRequest, *words: str) -> None:
    """INVALID_ARGUMENT with these words, at once; and the next caller is served."""
    before = time.monotonic()
    answer = infer(stack.addresses, door, message)
    assert time.monotonic() - before < PROMPT_S
    assert answer.code == INVALID_ARGUMENT, answer
    assert all(word in answer.text for word in words), answer.text
    assert_answers(DOORS["grpc edge raw"](stack.addresses, GOOD), GOOD)


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("is_typed", [False, True], ids=["raw", "typed"])
def test_wire_01_empty_strings_keep_their_bytes(stack: Stack, door: str, is_typed: bool) -> None:
    raw = b"\0\0\0\0" + b"\1\0\0\0a" + b"\0\0\0\0"
    shape = [1, 3]
    message = (
        request("id_bytes", tensor("X", "BYTES", shape, bytes_contents=[b"", b"a", b""]))
        if is_typed
        else request("id_bytes", tensor("X", "BYTES", shape), raw=(raw,))
    )
    response = infer(stack.addresses, door, message).infer_response()
    assert list(response.raw_output_contents) == [raw]
    assert list(response.outputs[0].shape) == shape


LYING = {
    "gigabytes": "ffffff7f61",
    "beyond the end": "030000006162",
    "short prefix": "010000",
    "two for one": "01000000610100000062",
    "stray byte": "010000006100",
    "empty": "",
}


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("data", LYING.values(), ids=LYING.keys())
def test_wire_03_lying_length_prefix_over_grpc(stack: Stack, door: str, data: str) -> None:
    assert_refused(stack, door, request("id_bytes", tensor("X", "BYTES", [1, 1]), raw=(bytes.fromhex(data),)), "'X'")


@pytest.mark.parametrize("data", LYING.values(), ids=LYING.keys())
def test_wire_03_lying_length_prefix_over_rest(stack: Stack, data: str) -> None:
    before = time.monotonic()
    reply = post_binary(stack, "id_bytes", [("X", "BYTES", [1, 1], bytes.fromhex(data))])
    assert time.monotonic() - before < PROMPT_S
    assert "'X'" in rest_error(reply, 400)
    assert_answers(DOORS["v2 binary"](stack.addresses, GOOD), GOOD)


@EVERY_GRPC_DOOR
def test_wire_06_raw_and_typed_contents_cannot_be_combined(stack: Stack, door: str) -> None:
    typed = {"int_contents": range(16)}
    first, second = tensor("INPUT0", "INT32", [1, 16], **typed), tensor("INPUT1", "INT32", [1, 16])
    assert_refused(stack, door, request("addsub_i32", first, second, raw=(b"\0" * 64,)), "raw_input_contents")
    both = tensor("INPUT1", "INT32", [1, 16], **typed)
    assert_refused(stack, door, request("addsub_i32", first, both, raw=(b"\0" * 64,) * 2), "raw_input_contents")


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("raw", [(64,), (64, 64, 64), (), (128,)], ids=["too few", "too many", "none", "both in one"])
def test_wire_07_raw_entries_differ_from_inputs(stack: Stack, door: str, raw: tuple[int, ...]) -> None:
    inputs = [tensor(name, "INT32", [1, 16]) for name in ("INPUT0", "INPUT1")]
    assert_refused(stack, door, request("addsub_i32", *inputs, raw=tuple(b"\0" * size for size in raw)))


@EVERY_GRPC_DOOR
def test_wire_08_fp16_travels_as_raw_bits_only(stack: Stack, door: str) -> None:
    bits = bytes.fromhex("003c007e0080ff7b")
    response = infer(stack.addresses, door, request("id_fp16", tensor("X", "FP16"), raw=(bits,))).infer_response()
    assert list(response.raw_output_contents) == [bits]
    assert_refused(stack, door, request("id_fp16", tensor("X", "FP16", fp32_contents=[1, 2, 3, 4])), "'X'", "FP16")


@pytest.mark.parametrize("door", ["node", "edge"])
def test_wire_11_every_datatype_with_the_stock_clients(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    kinds = ["grpc"] if door == "node" else ["grpc", "http binary", "http json"]
    # tritonclient has no JSON form of FP16 and BF16.
    halves = {"FP16", "BF16"}
    wanted = {kind: sorted({*Datatype} - (halves if kind == "http json" else set())) for kind in kinds}
    assert run("every_datatype.py", target, *kinds) == wanted


@pytest.mark.parametrize("shape", [[1.5, 4], ["1", 4], [True, 4], None, 4, [-1, 4], [1, -4], [-2, -2]], ids=str)
def test_wire_12_shapes_that_json_can_say(stack: Stack, shape: object) -> None:
    with httpx.Client(base_url=stack.addresses.edge_url) as client:
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": [1, 2, 3, 4]}]}
        rest_error(client.post("/v2/models/id_fp32/infer", json=body), 400)
        body["inputs"][0]["shape"] = [1, 4]
        assert client.post("/v2/models/id_fp32/infer", json=body).status_code == 200


OVERFLOWING = [[1 << 32, 1 << 32], [1 << 62, 4], [(1 << 63) - 1], [65536] * 4, [(1 << 31) + 1, 1], [(1 << 32) + 1, 4]]


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("shape", OVERFLOWING, ids=str)
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_wire_13_shape_product_overflow(stack: Stack, door: str, shape: list[int], datatype: str) -> None:
    for size in (0, 4, 16):
        message = request(f"id_{datatype.lower()}", tensor("X", datatype, shape), raw=(b"\0" * size,))
        assert_refused(stack, door, message, "'X'")


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("size", [0, 12, 15, 17, 20])
def test_wire_15_data_length_off_over_grpc(stack: Stack, door: str, size: int) -> None:
    assert_refused(stack, door, request("id_fp32", tensor(), raw=(b"\0" * size,)), "'X'", "16 bytes", f"got {size}")


@pytest.mark.parametrize("size", [0, 12, 15, 17, 20])
def test_wire_15_data_length_off_in_binary(stack: Stack, size: int) -> None:
    text = rest_error(post_binary(stack, "id_fp32", [("X", "FP32", [1, 4], b"\0" * size)]), 400)
    assert all(word in text for word in ("'X'", "16 bytes", f"got {size}")), text


@pytest.mark.parametrize("count", [3, 5])
def test_wire_15_data_length_off_in_json(stack: Stack, count: int) -> None:
    text = rest_error(post_v2(stack, "id_fp32", [("X", "FP32", [1, 4], [0.5] * count)]), 400)
    assert all(word in text for word in ("'X'", "4", str(count))), text


@EVERY_GRPC_DOOR
def test_wire_19_optional_inputs(stack: Stack, door: str) -> None:
    a, b = (tensor(name, shape=[4], fp32_contents=[1, 2, 3, 4]) for name in "AB")
    for inputs, wanted in (([a], [101, 102, 103, 104]), ([a, b], [2, 4, 6, 8]), ([a], [101, 102, 103, 104])):
        response = infer(stack.addresses, door, request("opt", *inputs)).infer_response()
        assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == wanted
    assert_refused(stack, door, request("opt", b), "'A'")


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("datatype", ["INT64", "FP32", "int32", "TYPE_INT32", "FLOAT", ""])
def test_wire_21_wrong_datatype(stack: Stack, door: str, datatype: str) -> None:
    size = 128 if datatype == "INT64" else 64
    inputs = [tensor("INPUT0", datatype, [1, 16]), tensor("INPUT1", "INT32", [1, 16])]
    assert_refused(stack, door, request("addsub_i32", *inputs, raw=(b"\0" * size, b"\0" * 64)), "INPUT0", f"'{datatype}'", "INT32")


VERSIONS = {"999": NOT_FOUND, "1abc": INVALID_ARGUMENT, " 1": INVALID_ARGUMENT, "-1": INVALID_ARGUMENT, "0x1": INVALID_ARGUMENT}
ASKED = [*((("id_fp32", version), code) for version, code in VERSIONS.items()), (("nope", ""), NOT_FOUND), (("id_fp32 ", ""), NOT_FOUND)]


@EVERY_GRPC_DOOR
@pytest.mark.parametrize(("asked", "code"), ASKED, ids=str)
def test_wire_22_odd_model_and_version_over_grpc(stack: Stack, door: str, asked: tuple[str, str], code: int) -> None:
    model, version = asked
    message = request(model, tensor(), raw=(b"\0" * 16,), model_version=version)
    assert infer(stack.addresses, door, message).code == code
    service = "/inference.GRPCInferenceService/"
    metadata = pb.ModelMetadataRequest(name=model, version=version).SerializeToString()
    assert call_bytes(stack.addresses, door, metadata, service + "ModelMetadata").code == code
    ready = call_bytes(stack.addresses, door, pb.ModelReadyRequest(name=model, version=version).SerializeToString(), service + "ModelReady")
    assert ready.code == code or not pb.ModelReadyResponse.FromString(ready.message).ready


@EVERY_GRPC_DOOR
def test_wire_22_a_version_beyond_any_integer(stack: Stack, door: str) -> None:
    message = request("id_fp32", tensor(), raw=(b"\0" * 16,), model_version="9" * 20)
    assert infer(stack.addresses, door, message).code in (NOT_FOUND, INVALID_ARGUMENT)


@pytest.mark.parametrize("version", [*VERSIONS, "9" * 20])
def test_wire_22_odd_version_over_rest(stack: Stack, version: str) -> None:
    url = f"{stack.addresses.edge_url}/v2/models/id_fp32/versions/{version}"
    wanted = 404 if VERSIONS.get(version, NOT_FOUND) == NOT_FOUND else 400
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    for reply in (httpx.post(f"{url}/infer", json=body), httpx.get(url), httpx.get(f"{url}/ready")):
        assert reply.status_code in (wanted, 400), reply.text
        rest_error(reply, reply.status_code)


def test_wire_23_empty_rows_meet_full_ones_in_the_batcher(stack: Stack) -> None:
    def ask(number: int) -> None:
        columns = number % 2 * 4
        data = np.full((1, columns), number, np.float32)
        message = request("delayed_fp32", tensor(shape=[1, columns]), raw=(data.tobytes(),))
        response = infer(stack.addresses, GRPC_DOORS[number % 4], message).infer_response()
        assert (list(response.outputs[0].shape), response.outputs[0].datatype) == ([1, columns], "FP32")
        assert list(response.raw_output_contents) == [data.tobytes()]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))


@EVERY_GRPC_DOOR
def test_wire_23_an_output_of_nothing(stack: Stack, door: str) -> None:
    response = infer(stack.addresses, door, request("nonzero", tensor(shape=[4]), raw=(b"\0" * 16,))).infer_response()
    assert (list(response.outputs[0].shape), list(response.raw_output_contents)) == ([1, 0], [b""])


WRONG_PARAMETERS: dict[str, dict[str, Any]] = {
    "priority as text": {"priority": {"string_param": "high"}},
    "negative priority": {"priority": {"int64_param": -1}},
    "negative timeout": {"timeout": {"int64_param": -5}},
    "timeout as text": {"timeout": {"string_param": "x"}},
    "final response": {"triton_final_response": {"bool_param": True}},
    "headers": {"headers": {"string_param": "a"}},
}


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: next(iter(value.values())) for key, value in parameters.items()}


@EVERY_GRPC_DOOR
@pytest.mark.parametrize("parameters", WRONG_PARAMETERS.values(), ids=WRONG_PARAMETERS.keys())
def test_wire_25_parameters_of_the_wrong_kind_over_grpc(stack: Stack, door: str, parameters: dict[str, Any]) -> None:
    assert_refused(stack, door, request("id_fp32", tensor(), raw=(b"\0" * 16,), parameters=parameters), *parameters)


@pytest.mark.parametrize("parameters", WRONG_PARAMETERS.values(), ids=WRONG_PARAMETERS.keys())
def test_wire_25_parameters_of_the_wrong_kind_over_rest(stack: Stack, parameters: dict[str, Any]) -> None:
    reply = post_v2(stack, "id_fp32", [("X", "FP32", [1, 1], [1])], parameters=_plain(parameters))
    assert next(iter(parameters)) in rest_error(reply, 400)


@EVERY_GRPC_DOOR
def test_wire_25_a_parameter_of_the_callers_own_is_accepted(stack: Stack, door: str) -> None:
    message = request("id_fp32", tensor(), raw=(b"\0" * 16,), parameters={"my_key": {"double_param": 1.5}})
    assert infer(stack.addresses, door, message).code == 0
    assert post_v2(stack, "id_fp32", [("X", "FP32", [1, 1], [1])], parameters={"my_key": 1.5}).status_code == 200
