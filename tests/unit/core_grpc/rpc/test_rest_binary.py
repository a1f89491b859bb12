"""The binary tensor extension."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from core_grpc.errors import InvalidArgument, InvalidTensor
from core_grpc.rpc.rest_codec import decode_infer_body
from core_grpc.types import Datatype, InferRequest, ModelSpec, TensorSpec
from tests.unit.core_grpc.rpc.rest_bodies import LIMITS, one_input, two_inputs

SPEC = one_input()
FOUR = np.array([[1, 2, 3, 4]], np.float32)


def tensor(name: str = "X", datatype: str = "FP32", shape: Any = (1, 4), **parameters: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "parameters": parameters}


def header_of(*inputs: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": inputs}).encode()


def decoded(header: bytes, tail: bytes, value: str | None = None, spec: ModelSpec = SPEC) -> InferRequest:
    return decode_infer_body(spec, header + tail, str(len(header)) if value is None else value, LIMITS)


def refusal(header: bytes, tail: bytes, value: str | None = None, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(InvalidArgument) as caught:
        decoded(header, tail, value, spec)
    return caught.value.message


def test_a_view_of_the_body_and_no_copy() -> None:
    header = header_of(tensor(binary_data_size=16))
    body = header + FOUR.tobytes()
    array = decode_infer_body(SPEC, body, str(len(header)), LIMITS).inputs["X"].array
    assert array.tolist() == FOUR.tolist()
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))
    assert not array.flags.writeable


def test_json_and_binary_inputs_mixed_in_the_order_of_the_json() -> None:
    plain = {"name": "B", "datatype": "INT32", "shape": [1, 2], "data": [7, 8]}
    header = header_of(tensor("C", "INT32", (1, 1), binary_data_size=4), plain, tensor("A", "INT32", (1, 2), binary_data_size=8))
    inputs = decoded(header, np.array([5, 1, 2], np.int32).tobytes(), spec=two_inputs()).inputs
    assert {name: item.array.tolist() for name, item in inputs.items()} == {"C": [[5]], "B": [[7, 8]], "A": [[1, 2]]}


@pytest.mark.parametrize("size_bytes", [0, 12, 15, 17, 20])
def test_sizes_that_are_not_the_shape_s(size_bytes: int) -> None:
    message = refusal(header_of(tensor(binary_data_size=size_bytes)), b"\0" * size_bytes)
    assert f"takes 16 bytes, got {size_bytes}" in message
    assert "'X'" in message


@pytest.mark.parametrize("size", [-1, 1.5, "16", True])
def test_sizes_that_are_none(size: Any) -> None:
    assert "input 'X': binary_data_size: wanted a non-negative integer" in refusal(header_of(tensor(binary_data_size=size)), FOUR.tobytes())


def test_leftover_and_missing_bytes() -> None:
    header = header_of(tensor(binary_data_size=16))
    assert "unexpected additional input data: 1 bytes" in refusal(header, FOUR.tobytes() + b"x")
    assert "only 15 bytes are left" in refusal(header, FOUR.tobytes()[:15])


def test_data_beside_binary_data() -> None:
    assert "both data and binary_data_size" in refusal(header_of({**tensor(binary_data_size=16), "data": [1]}), FOUR.tobytes())


@pytest.mark.parametrize(
    "value",
    ["-1", "+5", "abc", "1 0", "", " 5", "0x10", "1_0", "5,5", "99999999999", "18446744073709551616", "9" * 5000, "\u0665"],
)
def test_headers_that_are_no_length(value: str) -> None:
    assert "Inference-Header-Content-Length: wanted" in refusal(header_of(tensor(binary_data_size=16)), FOUR.tobytes(), value)


@pytest.mark.parametrize("offset", [-1, 1, 16])
def test_headers_that_cut_elsewhere(offset: int) -> None:
    header = header_of(tensor(binary_data_size=16))
    assert refusal(header, FOUR.tobytes(), str(len(header) + offset))


def test_without_the_header_all_is_json() -> None:
    with pytest.raises(InvalidArgument, match="body is not JSON"):
        decode_infer_body(SPEC, header_of(tensor(binary_data_size=16)) + FOUR.tobytes(), None, LIMITS)
    with pytest.raises(InvalidTensor, match="there is no header Inference-Header-Content-Length"):
        decode_infer_body(SPEC, header_of(tensor(binary_data_size=16)), None, LIMITS)


def test_bytes_elements() -> None:
    header = header_of(tensor("X", "BYTES", (1, 3), binary_data_size=13))
    raw = b"\0\0\0\0\1\0\0\0a\0\0\0\0"
    assert decoded(header, raw).inputs["X"].array.tolist() == [[b"", b"a", b""]]
    assert "'X'" in refusal(header, b"\0\0\0\0\7\0\0\0a\0\0\0\0")


class TestRawRequests:
    """A header of 0: the body is the values of the only input."""

    def test_the_batch_is_one_row_and_one_dimension_is_deduced(self) -> None:
        request = decoded(b"", FOUR.tobytes(), "0")
        assert request.inputs["X"].array.tolist() == FOUR.tolist()
        assert request.parameters["binary_data_output"] is True

    def test_without_a_batch_dimension(self) -> None:
        spec = one_input("INT16", (2, -1, 1), max_batch_size=0)
        assert decoded(b"", np.arange(6, dtype=np.int16).tobytes(), "0", spec).inputs["X"].array.shape == (2, 3, 1)

    def test_bytes_are_one_element(self) -> None:
        spec = one_input("BYTES", (-1, 1))
        assert decoded(b"", b"anything \xff", "0", spec).inputs["X"].array.tolist() == [[b"anything \xff"]]

    @pytest.mark.parametrize(
        ("spec", "wanted"),
        [
            (two_inputs(), "Raw request must only have 1 input (found 2)"),
            (one_input(shape=(-1, -1, -1)), "more than one variable-sized dimension"),
            (one_input(shape=(-1, 3)), "takes 12 bytes, got 16"),
            (one_input(shape=(-1, -1, 3)), "wanted a multiple of 12 bytes, got 16"),
            (one_input("BYTES", (-1, 2)), "must have input shape [1]"),
        ],
    )
    def test_what_cannot_be_deduced(self, spec: ModelSpec, wanted: str) -> None:
        assert wanted in refusal(b"", FOUR.tobytes(), "0", spec)

    def test_a_dimension_of_nothing(self) -> None:
        spec = ModelSpec("m", "1", "identity", 0, (TensorSpec("X", Datatype.FP32, (0, -1)),), ())
        assert "multiple of 0 bytes" in refusal(b"", FOUR.tobytes(), "0", spec)
