"""Answers of the v2 form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.rpc.raw_tensors import bytes_array
from core_grpc.rpc.rest_answers import RestBody, encode_infer_response
from core_grpc.types import Datatype, InferRequest, InferResponse, RequestedOutput, Tensor
from tests.unit.core_grpc.rpc.rest_bodies import response

JSON_WANTED = InferRequest("m", "1", {})
BINARY_WANTED = InferRequest("m", "1", {}, parameters={"binary_data_output": True})


def tensor(datatype: str, values: Any) -> Tensor:
    kind = Datatype(datatype)
    return Tensor(kind, np.array(values, kind.dtype))


def data_text(answer: InferResponse) -> str:
    """The text of the first output's data, as it stands in the body."""
    body = encode_infer_response(answer, JSON_WANTED)
    assert (body.content_type, body.json_bytes) == ("application/json", None)
    return body.data.decode().partition('"data":')[2].partition("]")[0] + "]"


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        ("FP32", [[0.1, 1.0], [-0.0, 16777216.0]], "[0.1,1.0,-0.0,16777216.0]"),
        ("FP32", [float("nan"), 1.5, float("inf"), float("-inf")], "[NaN,1.5,Infinity,-Infinity]"),
        ("FP64", [0.1, float("nan")], "[0.1,NaN]"),
        ("FP16", [0.0999755859375, float("inf")], "[0.099975586,Infinity]"),
        ("BF16", [1.5, float("nan")], "[1.5,NaN]"),
        ("INT64", [9007199254740993, -(1 << 63)], "[9007199254740993,-9223372036854775808]"),
        ("UINT64", [(1 << 64) - 1], "[18446744073709551615]"),
        ("INT8", [-128, 127], "[-128,127]"),
        ("BOOL", [True, False], "[true,false]"),
        ("FP32", [], "[]"),
        ("FP32", 2.5, "[2.5]"),
    ],
)
def test_numbers(datatype: str, values: Any, text: str) -> None:
    assert data_text(response(Y=tensor(datatype, values))) == text


def test_the_whole_of_an_answer() -> None:
    answer = response(Y=tensor("FP32", [[1, 2]]), Z=Tensor(Datatype.BYTES, bytes_array(["é\0".encode(), b""], (2, 1))))
    assert json.loads(encode_infer_response(answer, JSON_WANTED).data) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "Y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
            {"name": "Z", "datatype": "BYTES", "shape": [2, 1], "data": ["é\0", ""]},
        ],
    }


def test_the_id_comes_back() -> None:
    answer = InferResponse("m", "1", "r1", {}, response().timing)
    assert json.loads(encode_infer_response(answer, JSON_WANTED).data)["id"] == "r1"


def test_texts_that_say_null_are_texts() -> None:
    answer = response(Y=Tensor(Datatype.BYTES, bytes_array([b"null"], (1,))), Z=tensor("FP32", [float("nan"), 2]))
    assert '"data":["null"]' in (body := encode_infer_response(answer, JSON_WANTED).data.decode())
    assert '"data":[NaN,2.0]' in body


def test_bytes_that_are_no_text_are_refused() -> None:
    answer = response(Y=Tensor(Datatype.BYTES, bytes_array([b"\xff\xfe"], (1,))))
    with pytest.raises(InvalidArgument, match=r"^output 'Y' has BYTES that are not UTF-8 .*ask for it as binary data$"):
        encode_infer_response(answer, JSON_WANTED)
    assert encode_infer_response(answer, BINARY_WANTED).data.endswith(b"\2\0\0\0\xff\xfe")


def split(body: RestBody) -> tuple[dict[str, Any], bytes]:
    assert body.content_type == "application/octet-stream"
    assert body.json_bytes is not None
    return json.loads(body.data[: body.json_bytes]), body.data[body.json_bytes :]


def test_binary_answers_have_exact_sizes_in_order() -> None:
    answer = response(Y=tensor("FP32", [[1, 2]]), E=tensor("FP32", []), Z=tensor("BF16", [3]))
    header, raw = split(encode_infer_response(answer, BINARY_WANTED))
    assert [output["parameters"]["binary_data_size"] for output in header["outputs"]] == [8, 0, 2]
    assert all("data" not in output for output in header["outputs"])
    assert raw == np.array([1, 2], np.float32).tobytes() + tensor("BF16", [3]).array.tobytes()


def test_each_output_may_differ_from_the_request() -> None:
    outputs = (RequestedOutput("Y", {"binary_data": False}), RequestedOutput("Z"))
    request = InferRequest("m", "1", {}, outputs=outputs, parameters={"binary_data_output": True})
    header, raw = split(encode_infer_response(response(Y=tensor("INT8", [1]), Z=tensor("INT8", [2])), request))
    assert header["outputs"][0]["data"] == [1]
    assert header["outputs"][1]["parameters"] == {"binary_data_size": 1}
    assert raw == b"\2"


def test_only_empty_binary_outputs_make_a_json_answer() -> None:
    body = encode_infer_response(response(Y=tensor("FP32", [])), BINARY_WANTED)
    assert (body.content_type, body.json_bytes) == ("application/json", None)
    assert json.loads(body.data)["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_arrays_that_are_views() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert data_text(response(Y=Tensor(Datatype.FP32, whole[:, 1:3]))) == "[1.0,2.0,5.0,6.0,9.0,10.0]"
