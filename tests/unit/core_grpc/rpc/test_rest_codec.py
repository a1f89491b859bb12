"""Request bodies of the v2 form."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core_grpc.errors import InvalidArgument, InvalidTensor, Unsupported
from core_grpc.rpc.rest_codec import decode_infer_body
from core_grpc.shared_memory.regions import RegionStatus, SharedMemory
from core_grpc.types import Array, Datatype, InferRequest
from tests.support.bytes_memory import BytesMemory
from tests.unit.core_grpc.rpc.rest_bodies import LIMITS, PADDING_BYTES, infer_body, one_input

SPEC = one_input()
SIZES = pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])


def decoded(body: bytes, header: str | None = None) -> InferRequest:
    return decode_infer_body(SPEC, body, header, LIMITS)


def array(datatype: str, shape: list[int], data: str, *, is_large: bool = False) -> Array:
    tensor = decoded(infer_body(datatype, shape, data, is_large=is_large)).inputs["X"]
    assert tensor.datatype == datatype
    assert tensor.array.dtype == Datatype(datatype).dtype
    assert tensor.array.shape == tuple(shape)
    return tensor.array


def refusal(body: bytes, kind: type[InvalidArgument] | type[Unsupported] = InvalidArgument) -> str:
    with pytest.raises(kind) as caught:
        decoded(body)
    return caught.value.message


@SIZES
@pytest.mark.parametrize(
    ("datatype", "data", "wanted"),
    [
        ("UINT8", "[0, 256]", "'X' at [1]: UINT8 takes an integer from 0 to 255, got 256"),
        ("UINT8", "[0, -1]", "at [1]: UINT8 takes an integer from 0 to 255, got -1"),
        ("INT8", "[128, 0]", "at [0]: INT8 takes an integer from -128 to 127, got 128"),
        ("INT32", "[0, 2147483648]", "at [1]: INT32 takes an integer"),
        ("INT32", "[0, 1.5]", "got 1.5"),
        ("INT32", "[0, 1.0]", "got 1.0"),
        ("INT32", "[0, true]", "got true"),
        ("INT32", '[0, "1"]', "got a string"),
        ("INT32", "[0, null]", "got null"),
        ("INT32", "[0, [1]]", "got an array"),
        ("INT64", "[0, 9223372036854775808]", "got 9223372036854775808"),
        ("UINT64", "[0, 18446744073709551616]", "at [1]: UINT64 takes an integer from 0 to 18446744073709551615"),
        ("BOOL", "[true, 2]", "at [1]: BOOL takes true or false, got 2"),
        ("BOOL", '["true", true]', "at [0]: BOOL takes true or false, got a string"),
        ("FP32", '["1.0", 2]', "at [0]: FP32 takes a number, got a string"),
        ("FP32", "[0, {}]", "got an object"),
        ("FP32", "[0, 1e39]", "at [1]: FP32 takes a number, got 1e+39, which is out of range"),
        ("FP16", "[0, 65520]", "out of range"),
        ("BF16", "[0, -3.4e38]", "out of range"),
        ("FP32", "[[0], [1, 2]]", "at [1]: ragged nesting, wanted an array of 1, got one of 2"),
        ("FP32", "[[0, 1], 2]", "at [1]: ragged nesting, wanted an array of 2, got 2"),
        ("FP32", "[1, 2, 3]", "shape [2] takes 2 elements, got 3"),
        ("FP32", "[[1], [2]]", "data is nested as [2,1], wanted it flat or as its shape [2]"),
        ("FP32", "[" * 40 + "1" + "]" * 40, "nested 40 deep: wanted at most 32 (max_tensor_dimensions)"),
        ("BYTES", '["a", 1]', "at [1]: BYTES takes a string, got 1"),
    ],
)
def test_values_that_do_not_fit(datatype: str, data: str, wanted: str, is_large: bool) -> None:
    message = refusal(infer_body(datatype, [2], data, is_large=is_large), InvalidTensor)
    assert wanted in message
    assert "'X'" in message


@SIZES
@pytest.mark.parametrize("shape", [[3, 2], [2, 3]])
def test_rows_that_make_up_for_each_other_are_still_ragged(shape: list[int], is_large: bool) -> None:
    assert "at [1]: ragged" in refusal(infer_body("INT32", shape, "[[1, 2], [3], [4, 5, 6]]", is_large=is_large))


@SIZES
@pytest.mark.parametrize(
    ("datatype", "data", "wanted"),
    [
        ("INT64", "[9007199254740993, -9223372036854775808]", [9007199254740993, -(1 << 63)]),
        ("UINT64", "[18446744073709551615, 0]", [(1 << 64) - 1, 0]),
        ("FP64", "[0.1, 1e308]", [0.1, 1e308]),
        ("FP64", "[9007199254740993, 100000000000000000000]", [9007199254740992.0, 1e20]),
        ("FP32", "[1, -0.0]", [1.0, -0.0]),
        ("FP16", "[65504, 0.1]", [65504.0, float(np.float16(0.1))]),
        ("BF16", "[1.5, 0.1]", [1.5, float(ml_dtypes.bfloat16(0.1))]),
        ("BOOL", "[true, false]", [True, False]),
        ("BYTES", '["a\\u0000b", "\\ud83d\\ude00"]', [b"a\x00b", "\U0001f600".encode()]),
        ("BYTES", '["", "[[,"]', [b"", b"[[,"]),
    ],
)
def test_values_are_exact(datatype: str, data: str, wanted: list[Any], is_large: bool) -> None:
    assert array(datatype, [2], data, is_large=is_large).tolist() == wanted


@SIZES
@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_numbers_that_are_not_finite(datatype: str, is_large: bool) -> None:
    got = array(datatype, [4], "[NaN, Infinity, -Infinity, 0.5]", is_large=is_large).astype(np.float64)
    np.testing.assert_array_equal(got, [np.nan, np.inf, -np.inf, 0.5])


@SIZES
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT64", "BYTES", "BOOL"])
def test_nested_and_flat_are_the_same(datatype: str, is_large: bool) -> None:
    element = {"BYTES": '"{}"', "BOOL": "true"}.get(datatype, "{}")
    flat = [element.format(n) for n in range(12)]
    rows = [f"[{','.join(flat[n : n + 2])}]" for n in range(0, 12, 2)]
    nested = f"[[{','.join(rows[:3])}],\n [{' , '.join(rows[3:])}]]"
    assert array(datatype, [2, 3, 2], nested, is_large=is_large).tolist() == array(datatype, [2, 3, 2], f"[{','.join(flat)}]").tolist()


def test_large_nested_arrays_whose_brackets_strings_imitate() -> None:
    """The proof by brackets can fail because of strings; the rows are then looked at one by one."""
    body = infer_body("FP32", [2, 2], "[[1,2],[3,4]]", is_large=True, id="[[,,],[,]")
    assert decoded(body).inputs["X"].array.tolist() == [[1, 2], [3, 4]]
    broken = infer_body("FP32", [3, 2], "[[1,2],[3],[4,5,6]]", is_large=True, id="[[,],[,],[,]]")
    assert "at [1]: ragged" in refusal(broken)


@SIZES
def test_empty_tensors(is_large: bool) -> None:
    for shape, data in (([1, 0], "[]"), ([0, 4], "[]"), ([1, 0], "[[]]"), ([2, 0], "[[], []]")):
        assert array("FP32", shape, data, is_large=is_large).size == 0
    assert "ragged" in refusal(infer_body("FP32", [2, 0], "[[], [[]]]", is_large=is_large))


@SIZES
def test_a_tensor_without_dimensions(is_large: bool) -> None:
    assert array("FP32", [], "2.5", is_large=is_large) == 2.5
    assert array("FP32", [], "[2.5]", is_large=is_large) == 2.5


@pytest.mark.parametrize(
    "shape", [[-1, 4], [1, -4], [1.5, 4], ["1", 4], [True, 4], None, 4, {}, [1 << 63], [1 << 40, 1 << 40, 0], [1] * 33]
)
def test_shapes_that_are_none(shape: Any) -> None:
    message = refusal(infer_body("FP32", shape, "[]"), InvalidArgument)
    assert "'X'" in message
    assert "shape" in message or "dimensions" in message


@pytest.mark.parametrize("shape", [[1 << 32, 1 << 32], [1 << 62, 4], [65536] * 4, [(1 << 63) - 1]])
@pytest.mark.parametrize("data", ["[]", "[1, 2, 3, 4]"])
def test_products_do_not_wrap(shape: list[int], data: str) -> None:
    assert "shape" in refusal(infer_body("FP32", shape, data), InvalidTensor)


@pytest.mark.parametrize(
    ("root", "wanted"),
    [
        ({}, "body has no inputs"),
        ({"inputs": {}}, "inputs: wanted an array, got an object"),
        ({"inputs": None}, "inputs: wanted an array, got null"),
        ({"inputs": [1]}, "wanted an object, got 1"),
        ({"inputs": [], "foo": 1}, "body: unknown field 'foo'"),
        ({"inputs": [], "id": 5}, "id: wanted a string, got 5"),
        ({"inputs": [{"shape": [1]}]}, "inputs[0] has no name"),
        ({"inputs": [{"name": 1}]}, "name of an input: wanted a string, got 1"),
        ({"inputs": [{"name": "X", "datatyp": "FP32"}]}, "input 'X': unknown field 'datatyp'"),
        ({"inputs": [{"name": "X", "shape": [1], "data": [1]}]}, "input 'X' has no datatype"),
        ({"inputs": [{"name": "X", "datatype": "FP32", "data": [1]}]}, "input 'X' has no shape"),
        ({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1]}]}, "input 'X' has no data"),
        ({"inputs": [{"name": "X", "datatype": "float", "shape": [1], "data": [1]}]}, "datatype 'float'"),
        ({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}] * 2}, "input 'X' is given twice"),
        ({"inputs": [], "parameters": {"triton_final_response": True}}, "parameter 'triton_final_response' is reserved"),
        ({"inputs": [], "parameters": {"headers": "a"}}, "parameter 'headers' is reserved"),
        ({"inputs": [], "parameters": {"priority": "high"}}, "parameter 'priority': wanted a non-negative integer, got a string"),
        ({"inputs": [], "parameters": {"priority": -1}}, "got -1"),
        ({"inputs": [], "parameters": {"timeout": 1.5}}, "got 1.5"),
        ({"inputs": [], "parameters": {"sequence_start": 1}}, "parameter 'sequence_start': wanted true or false, got 1"),
        ({"inputs": [], "parameters": {"sequence_id": True}}, "got true"),
        ({"inputs": [], "parameters": {"binary_data_output": "yes"}}, "parameter 'binary_data_output': wanted true or false"),
        ({"inputs": [], "parameters": {"a": [1]}}, "'a': wanted true, false, a number or a string, got an array"),
        ({"inputs": [], "outputs": {}}, "outputs: wanted an array, got an object"),
        ({"inputs": [], "outputs": [{}]}, "outputs[0] has no name"),
        ({"inputs": [], "outputs": [{"name": "Y", "datatype": "FP32"}]}, "output 'Y': unknown field 'datatype'"),
        ({"inputs": [], "outputs": [{"name": "Y", "parameters": {"binary_data": 1}}]}, "output 'Y': binary_data: wanted true or false"),
    ],
)
def test_bodies_that_contradict_the_protocol(root: dict[str, Any], wanted: str) -> None:
    assert wanted in refusal(json.dumps(root).encode())


def test_what_is_not_offered() -> None:
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    tensor = {"name": "X", "datatype": "FP32", "shape": [1], "parameters": shared}
    assert "client shared memory is not allowed here" in refusal(json.dumps({"inputs": [tensor]}).encode(), Unsupported)
    body = json.dumps({"inputs": [], "outputs": [{"name": "Y", "parameters": shared}]}).encode()
    assert "client shared memory is not allowed here" in refusal(body, Unsupported)


def test_a_request_that_is_refused_holds_no_region() -> None:
    memory = SharedMemory(is_allowed=True)
    region = BytesMemory(bytes(4))
    memory.add(RegionStatus("r", "system", 4), region)
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    outputs = [{"name": "Y", "parameters": shared}]
    for parameters in ({"priority": -1}, {"triton_x": 1}, 5):
        body = json.dumps({"inputs": [], "outputs": outputs, "parameters": parameters}).encode()
        with pytest.raises(InvalidArgument):
            decode_infer_body(SPEC, body, None, LIMITS, memory=memory)
    memory.remove("system", "r")
    assert not region.is_open


def test_everything_else_of_a_request() -> None:
    body = infer_body(
        "FP32", [1], "[1]", id="r1", parameters={"my_key": 1.5, "priority": 2}, outputs=[{"name": "Y", "parameters": {"binary_data": True}}]
    )
    request = decode_infer_body(SPEC, body, None, LIMITS, deadline=7.0)
    assert (request.model_name, request.model_version, request.id, request.deadline) == ("m", "1", "r1", 7.0)
    assert request.parameters == {"my_key": 1.5, "priority": 2}
    assert [(output.name, dict(output.parameters)) for output in request.outputs] == [("Y", {"binary_data": True})]


def test_null_counts_as_absent_where_a_field_is_optional() -> None:
    request = decoded(infer_body("FP32", [1], "[1]", id=None, parameters=None, outputs=None))
    assert (request.id, request.outputs, dict(request.parameters)) == ("", (), {})


@SIZES
def test_integers_beyond_64_bits_are_floats(is_large: bool) -> None:
    padding = {"padding": "x" * PADDING_BYTES} if is_large else {}
    body = json.dumps({"inputs": [], "parameters": {"a": (1 << 64) - 1, "b": 1 << 64, **padding}}).encode()
    parameters = decoded(body).parameters
    assert (parameters["a"], repr(parameters["b"])) == ((1 << 64) - 1, "1.8446744073709552e+19")


def test_the_depth_limit_is_the_setting() -> None:
    shallow = replace(LIMITS, max_json_depth=4)
    assert decode_infer_body(SPEC, infer_body("FP32", [1], "[1]"), None, shallow).inputs["X"].array.tolist() == [1]
    with pytest.raises(InvalidTensor, match="4 levels"):
        decode_infer_body(SPEC, infer_body("FP32", [1, 1], "[[1]]"), None, shallow)


def test_a_million_members_and_a_million_rows_take_no_quadratic_time() -> None:
    began = time.process_time()
    many = {f"k{n}": 1 for n in range(100_000)}
    assert "unknown field 'k0'" in refusal(json.dumps(many).encode())
    rows = "[" + ",".join(["[1]"] * 100_000) + ",[1,2]]"
    assert "at [100000]: ragged" in refusal(infer_body("FP32", [100_001, 1], rows))
    assert time.process_time() - began < 5


def test_a_nesting_that_claims_more_than_the_body_has() -> None:
    """The first row alone decides on the shape, and a million other rows do not have its million elements."""
    first = ",".join(["1"] * 100_000)
    rows = f"[[{first}]" + ",[]" * 100_000 + "]"
    assert "at [1]: ragged" in refusal(infer_body("FP32", [100_001, 100_000], rows))


def test_base64_elements_where_the_input_says_so() -> None:
    fields = {"name": "X", "datatype": "BYTES", "shape": [1, 2], "parameters": {"content_type": "base64"}}
    request = decoded(json.dumps({"inputs": [{**fields, "data": ["/w==", ""]}]}).encode())
    assert request.inputs["X"].array.tolist() == [[b"\xff", b""]]
    assert "'X': wanted standard base64" in refusal(json.dumps({"inputs": [{**fields, "data": ["!!", ""]}]}).encode())
    plain = {**fields, "parameters": {}, "data": ["/w==", ""]}
    assert decoded(json.dumps({"inputs": [plain]}).encode()).inputs["X"].array.tolist() == [[b"/w==", b""]]
