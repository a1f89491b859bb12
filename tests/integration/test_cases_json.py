"""Collected bug reports about JSON, REST and transcoding (JSON-*), replayed through the edge.

Where a report leaves a choice, the test says which one this server made; docs/doors.md tells callers.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import httpx
import numpy as np
import pytest
from openapi_spec_validator import validate

from protos.inference import grpc_service_pb2 as pb
from tests.doors.test_vectors import GOOD, assert_answers
from tests.support.doors import DOORS
from tests.support.rest import binary_body, post_binary, post_v2
from tests.support.stack import Stack
from tests.support.wire import infer, rest_error

ONE = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
JSON_ROUTES = ("/v2/models/id_fp32/infer", "/v1/models/id_fp32:predict", "/v1/predict", "/predict")


def post_json(stack: Stack, path: str, body: bytes, kind: str | None = "application/json") -> httpx.Response:
    return httpx.post(stack.addresses.edge_url + path, content=body, headers={"content-type": kind} if kind else {}, timeout=20)


def predict(stack: Stack, model: str, **tensors: Any) -> httpx.Response:
    """``POST /v1/predict``, which the edge transcodes, with one input."""
    body = {"model": model, "inputs": [{"name": "X", **tensors}], "encoding": "TENSOR_ENCODING_VALUES"}
    return httpx.post(f"{stack.addresses.edge_url}/v1/predict", json=body, timeout=20)


def data_of(reply: httpx.Response) -> list[Any]:
    assert reply.status_code == 200, reply.text
    return list(reply.json()["outputs"][0]["data"])


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_json_01_half_floats_are_served_as_numbers_both_ways(stack: Stack, datatype: str) -> None:
    model = f"id_{datatype.lower()}"
    assert data_of(post_v2(stack, model, [("X", datatype, [1, 2], [1.0, 0.5])])) == [1.0, 0.5]
    bits = bytes.fromhex("003c0038" if datatype == "FP16" else "803f003f")
    reply = post_binary(stack, model, [("X", datatype, [1, 2], bits)], outputs=[{"name": "Y", "parameters": {"binary_data": False}}])
    assert data_of(reply) == [1.0, 0.5]


def test_json_02_integers_are_exact_in_the_text_itself(stack: Stack) -> None:
    """The vectors compare values; here it is the literals: a parser that goes through doubles would hide a lost digit."""
    numbers = [9007199254740993, -9223372036854775808, 9223372036854775807]
    for given in (numbers, [str(number) for number in numbers]):
        reply = predict(stack, "id_int64", shape=[1, 3], int64_values=given)
        assert reply.json()["outputs"][0]["int64_values"] == [str(number) for number in numbers]
    text = post_v2(stack, "id_int64", [("X", "INT64", [1, 3], numbers)]).text
    assert ",".join(map(str, numbers)) in text.replace(" ", "")
    assert "18446744073709551615" in post_v2(stack, "id_uint64", [("X", "UINT64", [1, 1], [18446744073709551615])]).text


@pytest.mark.parametrize(("datatype", "number"), [("INT64", 1 << 63), ("INT64", -(1 << 63) - 1), ("UINT64", 1 << 64), ("UINT64", -1)])
def test_json_02_integers_out_of_range(stack: Stack, datatype: str, number: int) -> None:
    model = f"id_{datatype.lower()}"
    assert "X" in rest_error(post_v2(stack, model, [("X", datatype, [1, 1], [number])]), 400)
    # As text: Envoy reads a number just below the range of INT64 as the nearest one in it (docs/doors.md).
    rest_error(predict(stack, model, shape=[1, 1], **{f"{datatype.lower()}_values": [str(number)]}), 400)


A, B = [1.0, -1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 2.0]


def _is_inf_inf_nan_half(values: Any) -> bool:
    return bool(np.array_equal(np.array(values, np.float32), np.array([np.inf, -np.inf, np.nan, 0.5], np.float32), equal_nan=True))


def test_json_03_nan_and_infinity_in_v2(stack: Stack) -> None:
    """JSON has them as bare words, as Triton writes them (docs/decisions.md, 8); who cannot read those asks for binary data."""
    inputs = [("A", "FP32", [1, 4], A), ("B", "FP32", [1, 4], B)]
    reply = post_v2(stack, "div_fp32", inputs)
    assert _is_inf_inf_nan_half(data_of(reply))
    assert all(word in reply.text for word in ("NaN", "-Infinity"))
    reply = post_v2(stack, "div_fp32", inputs, parameters={"binary_data_output": True})
    length = int(reply.headers["inference-header-content-length"])
    json.loads(reply.content[:length], parse_constant=pytest.fail)
    assert _is_inf_inf_nan_half(np.frombuffer(reply.content[length:], np.float32))


def test_json_03_nan_and_infinity_transcoded_and_over_grpc(stack: Stack) -> None:
    tensors = [{"name": name, "shape": [1, 4], "float_values": values} for name, values in (("A", A), ("B", B))]
    body = {"model": "div_fp32", "inputs": tensors, "encoding": "TENSOR_ENCODING_VALUES"}
    reply = httpx.post(f"{stack.addresses.edge_url}/v1/predict", json=body)
    strict = json.loads(reply.content, parse_constant=pytest.fail)
    assert strict["outputs"][0]["float_values"] == ["Infinity", "-Infinity", "NaN", 0.5]
    raw = np.array([A, B], np.float32)
    inputs = [{"name": name, "datatype": "FP32", "shape": [1, 4]} for name in "AB"]
    message = pb.ModelInferRequest(model_name="div_fp32", inputs=inputs, raw_input_contents=[row.tobytes() for row in raw])
    for door in ("node", "edge", "web"):
        answered = infer(stack.addresses, door, message).infer_response().raw_output_contents[0]
        assert _is_inf_inf_nan_half(np.frombuffer(answered, np.float32))


MISFITS = [
    ("UINT8", 256),
    ("UINT8", -1),
    ("INT8", 128),
    ("INT32", 2147483648),
    ("INT32", 1.5),
    ("INT32", True),
    ("INT32", "1"),
    ("INT32", None),
    ("BOOL", 2),
    ("BOOL", "true"),
    ("FP32", "1.0"),
    ("FP32", {}),
]


@pytest.mark.parametrize("count", [1, 3000], ids=["short", "long"])
@pytest.mark.parametrize(("datatype", "value"), MISFITS, ids=str)
def test_json_05_a_number_that_does_not_fit_is_never_cast(stack: Stack, datatype: str, value: object, count: int) -> None:
    good: Any = datatype == "BOOL" or 1
    data = [*[good] * (count - 1), value]
    text = rest_error(post_v2(stack, f"id_{datatype.lower()}", [("X", datatype, [1, count], data)]), 400)
    assert "X" in text
    assert datatype in text or str(count - 1) in text, text


def test_json_05_a_whole_number_with_a_point_is_an_integer_or_is_refused(stack: Stack) -> None:
    reply = post_v2(stack, "id_int32", [("X", "INT32", [1, 1], [1.0])])
    assert reply.status_code == 400, reply.text


@pytest.mark.parametrize("data", [["a", "b"], [["a"], ["b"]]], ids=["flat", "nested"])
def test_json_06_nested_and_flat_strings_are_the_same_tensor(stack: Stack, data: list[Any]) -> None:
    assert data_of(post_v2(stack, "id_bytes", [("X", "BYTES", [2, 1], data)])) == ["a", "b"]


def test_json_06_nesting_that_contradicts_the_shape(stack: Stack) -> None:
    assert "X" in rest_error(post_v2(stack, "id_bytes", [("X", "BYTES", [2, 1], [["a", "b"]])]), 400)


def test_json_08_bytes_that_are_no_text(stack: Stack) -> None:
    raw = b"\2\0\0\0\xff\xfe"
    inputs = [("X", "BYTES", [1, 1], raw)]
    # Not id_bytes: strings of ONNX are UTF-8.
    text = rest_error(post_binary(stack, "delayed_bytes", inputs, outputs=[{"name": "Y", "parameters": {"binary_data": False}}]), 400)
    assert "Y" in text
    assert "binary" in text
    reply = post_binary(stack, "delayed_bytes", inputs, parameters={"binary_data_output": True})
    assert reply.content.endswith(raw)
    reply = predict(stack, "delayed_bytes", shape=[1, 1], bytes_values=["//4="])
    assert reply.json()["outputs"][0]["bytes_values"] == ["//4="]


@pytest.mark.parametrize(("literal", "meant"), [("a\\u0000b", "a\0b"), ("\\ud83d\\ude00", "\U0001f600"), ("\\u00e9", "\u00e9")])
def test_json_09_escapes_are_the_characters_they_mean(stack: Stack, literal: str, meant: str) -> None:
    body = b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[1,1],"data":["%s"]}]' % literal.encode()
    assert data_of(post_json(stack, "/v2/models/id_bytes/infer", body + b"}")) == [meant]
    reply = post_json(stack, "/v2/models/id_bytes/infer", body + b',"parameters":{"binary_data_output":true}}')
    assert reply.content.endswith(len(meant.encode()).to_bytes(4, "little") + meant.encode())


@pytest.mark.parametrize("route", ["/v2/models/id_bytes/infer", "/v1/models/id_bytes:predict"])
def test_json_09_a_lone_surrogate_is_no_character(stack: Stack, route: str) -> None:
    body = (
        b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[1,1],"data":["\\ud800"]}]}'
        if route.startswith("/v2")
        else b'{"inputs":[["\\ud800"]]}'
    )
    assert "surrogate" in rest_error(post_json(stack, route, body), 400)


FOUR = ("X", "FP32", [1, 4], np.arange(4, dtype=np.float32).tobytes())
LENGTH = len(binary_body([FOUR])[0])
WRONG_LENGTHS = [LENGTH - 1, LENGTH + 1, -1, LENGTH + 16, LENGTH + 17, 99999999999, 1 << 64, "abc", f"{LENGTH} abc", ""]


@pytest.mark.parametrize("value", WRONG_LENGTHS, ids=str)
def test_json_10_a_wrong_header_length(stack: Stack, value: int | str) -> None:
    rest_error(post_binary(stack, "id_fp32", [FOUR], {"inference-header-content-length": str(value)}), 400)
    assert_answers(DOORS["v2 binary"](stack.addresses, GOOD), GOOD)


def test_json_10_a_header_length_of_nothing_says_that_the_body_is_one_raw_tensor(stack: Stack) -> None:
    """So it does not shift data: what comes back are all the bytes that were sent, the JSON among them (docs/doors.md)."""
    header, data = binary_body([FOUR])
    whole = header + b" " * (-len(header) % 4) + data
    url, name = f"{stack.addresses.edge_url}/v2/models/id_fp32/infer", "inference-header-content-length"
    reply = httpx.post(url, content=whole, headers={name: "0"})
    assert reply.status_code == 200
    assert reply.content.endswith(whole)
    rest_error(httpx.post(url, content=whole + b"\0", headers={name: "0"}), 400)


def test_json_10_a_header_length_given_twice_or_not_at_all(stack: Stack) -> None:
    header, data = binary_body([FOUR])
    url, name = f"{stack.addresses.edge_url}/v2/models/id_fp32/infer", "inference-header-content-length"
    twice = [(name, str(len(header))), (name, str(len(header) - 1))]
    rest_error(httpx.post(url, content=header + data, headers=twice), 400)
    rest_error(httpx.post(url, content=header + data), 400)
    rest_error(httpx.post(url, content=header), 400)


DOCUMENTS = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "nothing": b"{}",
    "inputs an object": b'{"inputs":{}}',
    "inputs null": b'{"inputs":null}',
    "inputs empty": b'{"inputs":[]}',
    "trailing comma": b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,1],"data":[1]},]}',
    "byte-order mark": b"\xef\xbb\xbf" + json.dumps({"inputs": [ONE]}).encode(),
    "garbage behind": json.dumps({"inputs": [ONE]}).encode() + b"x",
    "inputs twice": b'{"inputs":[%s],"inputs":[%s]}' % ((json.dumps(ONE).encode(),) * 2),
    "single quotes": b"{'inputs':[]}",
}


@pytest.mark.parametrize("body", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_json_15_odd_documents(stack: Stack, body: bytes) -> None:
    rest_error(post_json(stack, "/v2/models/id_fp32/infer", body), 400)
    # An empty list of rows is no request of /v2; for :predict it is a tensor of no columns.
    if body != DOCUMENTS["inputs empty"]:
        rest_error(post_json(stack, "/v1/models/id_fp32:predict", body), 400)


@pytest.mark.parametrize("place", ['{"inputs":[{"name":"X","data":%s}]}', '{"parameters":{"a":%s}}', '{"unknown":%s}'])
@pytest.mark.parametrize("route", JSON_ROUTES)
def test_json_16_deep_nesting(stack: Stack, place: str, route: str) -> None:
    body = (place % ("[" * 100_000 + "1" + "]" * 100_000)).encode()
    before = time.monotonic()
    reply = post_json(stack, route, body)
    assert time.monotonic() - before < 5
    text = rest_error(reply, 400)
    assert "Recursion" not in text
    assert stack.get("/v2/health/live").status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("a%20b", 200), ("a+b", 404), ("org%2Fm", 404), ("org/m", 404), ("id%5Ffp32", 200), ("%2569d_fp32", 404), ("%69d_fp32", 200)],
)
def test_json_17_names_in_paths(stack: Stack, path: str, status: int) -> None:
    reply = stack.get(f"/v2/models/{path}/ready")
    assert reply.status_code == status, reply.text
    if status != 200:
        rest_error(reply, status)


@pytest.mark.parametrize("query", ["utm=1", "a[b]=1", "id=7"])
def test_json_19_an_unknown_query_parameter_is_ignored(stack: Stack, query: str) -> None:
    reply = httpx.post(f"{stack.addresses.edge_url}/v2/models/id_fp32/infer?{query}", json={"inputs": [ONE]})
    assert data_of(reply) == [1]
    assert "id" not in reply.json()


@pytest.mark.parametrize(
    "body",
    [{"foo": 1, "inputs": [ONE]}, {"inputs": [{**ONE, "foo": 1}]}, {"inputs": [{**ONE, "datatyp": "FP32"}]}],
    ids=["top", "input", "misspelt"],
)
def test_json_19_an_unknown_member_is_refused_by_name(stack: Stack, body: dict[str, Any]) -> None:
    text = rest_error(httpx.post(f"{stack.addresses.edge_url}/v2/models/id_fp32/infer", json=body), 400)
    assert any(word in text for word in ("'foo'", "'datatyp'")), text


@pytest.mark.parametrize(
    ("text", "status"),
    [("+/8=", 200), ("-_8=", 200), ("-_8", 200), ("+/8", 200), ("+/\n8=", 200), ("a", 400), ("!!", 400)],
    ids=["standard", "url", "url unpadded", "unpadded", "line break", "one letter", "no base64"],
)
def test_json_20_both_alphabets_of_base64(stack: Stack, text: str, status: int) -> None:
    body = {"model": "id_uint8", "inputs": [{"name": "X", "datatype": "UINT8", "shape": [1, 2], "raw": text}]}
    reply = httpx.post(f"{stack.addresses.edge_url}/v1/predict", json=body)
    if status == 200:
        assert base64.b64decode(reply.json()["outputs"][0]["raw"], validate=True) == b"\xfb\xff"
    else:
        rest_error(reply, 400)


@pytest.mark.parametrize("kind", ["application/json", "image/png", None, "multipart/form-data", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("route", JSON_ROUTES)
def test_json_23_a_binary_body_to_a_json_route(stack: Stack, route: str, kind: str | None) -> None:
    logged = len(stack.program.output)
    reply = post_json(stack, route, bytes.fromhex("89504e47fffe") + b"SECRET-42", kind)
    assert reply.status_code in (400, 415, 422), reply.text
    rest_error(reply, reply.status_code)
    assert "SECRET-42" not in reply.text
    assert "SECRET-42" not in stack.program.output[logged:]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"model": SECRET}', "Unexpected token"),
        (b'{"model": "a\\nb\\\\", SECRET', "key:value"),
        (b'{"inputs": [{"shape": ["SEC\\"\\\\RET"]}]}', "inputs[0].shape[0]: invalid value for type"),
        (b'{"inputs": [{"raw": "SECRET!"}]}', "inputs[0].raw"),
    ],
)
@pytest.mark.parametrize("route", ["/v1/predict", "/v1/watch"])
def test_json_23_what_the_edge_cannot_read_is_named_and_not_repeated(stack: Stack, route: str, body: bytes, place: str) -> None:
    text = rest_error(post_json(stack, route, body), 400)
    assert "SEC" not in text
    assert place in text or route == "/v1/watch", text


def test_json_24_the_description_is_valid_and_each_get_is_served(stack: Stack) -> None:
    reply = stack.get("/openapi.json")
    document = json.loads(reply.content, parse_constant=pytest.fail)
    validate(document)
    for path, item in document["paths"].items():
        if "get" in item:
            served = stack.get(path.replace("{model}", "id_fp32").replace("{version}", "1").replace("{region}", "none"))
            assert str(served.status_code) in item["get"]["responses"], (path, served.status_code, served.text)
            # Management is not offered through an edge that was not told to: 403.
            assert served.status_code in (200, 403, 404, 501, 503), (path, served.text)
