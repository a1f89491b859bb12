"""Open Inference Protocol messages: what decodes, what is refused, and that encoding is its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from core_grpc.errors import InvalidArgument, InvalidTensor, Unsupported
from core_grpc.rpc.codec import decode_infer_request, encode_infer_response
from core_grpc.shared_memory.regions import SharedMemory
from core_grpc.types import Datatype, InferResponse, Tensor, Timing
from protos.inference import grpc_service_pb2 as pb

NUMERIC = [datatype for datatype in Datatype if datatype not in (Datatype.BYTES, Datatype.BF16)]


NO_MEMORY = SharedMemory(is_allowed=False)


def request(*inputs: dict[str, Any], raw: list[bytes] | None = None, **fields: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw or [], **fields)


def decode(message: pb.ModelInferRequest) -> dict[str, Tensor]:
    return dict(decode_infer_request(message, None, 32, NO_MEMORY).inputs)


@given(st.sampled_from(NUMERIC), st.data())
def test_raw_round_trip_keeps_every_bit(datatype: Datatype, data: st.DataObject) -> None:
    array = data.draw(hnp.arrays(datatype.dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))
    response = InferResponse("m", "1", "id", {"X": Tensor(datatype, array)}, Timing(0, 0, 0, 1))
    encoded = encode_infer_response(response)
    decoded = decode(
        request(
            {"name": "X", "datatype": encoded.outputs[0].datatype, "shape": encoded.outputs[0].shape}, raw=[*encoded.raw_output_contents]
        )
    )
    assert decoded["X"].array.tobytes() == array.tobytes()
    assert decoded["X"].array.shape == array.shape


@given(st.lists(st.binary(), max_size=5))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    encoded = encode_infer_response(InferResponse("m", "1", "", {"X": Tensor(Datatype.BYTES, array)}, Timing(0, 0, 0, 1)))
    decoded = decode(request({"name": "X", "datatype": "BYTES", "shape": [len(elements)]}, raw=[encoded.raw_output_contents[0]]))
    assert decoded["X"].array.tolist() == elements


def test_raw_arrays_are_views_of_the_message() -> None:
    (tensor,) = decode(request({"name": "X", "datatype": "FP32", "shape": [2]}, raw=[b"\0" * 8])).values()
    assert not tensor.array.flags.owndata


@pytest.mark.parametrize(
    ("datatype", "contents", "wanted"),
    [
        ("BOOL", {"bool_contents": [True, False]}, [True, False]),
        ("INT8", {"int_contents": [-128, 127]}, [-128, 127]),
        ("UINT16", {"uint_contents": [0, 65535]}, [0, 65535]),
        ("INT64", {"int64_contents": [-(2**63), 2**63 - 1]}, [-(2**63), 2**63 - 1]),
        ("UINT64", {"uint64_contents": [0, 2**64 - 1]}, [0, 2**64 - 1]),
        ("FP32", {"fp32_contents": [0.5, -1.0]}, [0.5, -1.0]),
        ("FP64", {"fp64_contents": [0.1, -1.0]}, [0.1, -1.0]),
        ("BYTES", {"bytes_contents": [b"", b"a"]}, [b"", b"a"]),
    ],
)
def test_typed_contents(datatype: str, contents: dict[str, Any], wanted: list[Any]) -> None:
    (tensor,) = decode(request({"name": "X", "datatype": datatype, "shape": [2], "contents": contents})).values()
    assert tensor.array.tolist() == wanted


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (request({"name": "X", "datatype": "INT8", "shape": [1], "contents": {"int_contents": [128]}}), ["X", "INT8", "128"]),
        (request({"name": "X", "datatype": "UINT8", "shape": [1], "contents": {"uint_contents": [256]}}), ["X", "255", "256"]),
        (request({"name": "X", "datatype": "FP32", "shape": [1], "contents": {"int_contents": [1]}}), ["fp32_contents", "int_contents"]),
        (request({"name": "X", "datatype": "FP16", "shape": [1], "contents": {"fp32_contents": [1]}}), ["FP16", "raw_input_contents"]),
        (request({"name": "X", "datatype": "FP32", "shape": [1]}), ["X", "no data"]),
        (
            request({"name": "X", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1]}}, raw=[b"\0" * 4]),
            ["contents field must not be specified when using raw_input_contents for 'X' for model 'm'"],
        ),
        (request({"name": "X", "datatype": "FP32", "shape": [4]}, raw=[b"\0" * 15]), ["X", "16", "15"]),
        (request({"name": "X", "datatype": "BOOL", "shape": [1]}, raw=[b"\2"]), ["X", "BOOL"]),
        (request({"name": "X", "datatype": "FP32", "shape": [2**32, 2**32]}, raw=[b""]), ["X"]),
        (request({"name": "X", "datatype": "FP32", "shape": [2**62, 0, 2**62]}, raw=[b""]), ["X", "2^60"]),
        (request({"name": "X", "datatype": "FP32", "shape": [1] * 33}, raw=[b"\0" * 4]), ["33", "max_tensor_dimensions"]),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(message: pb.ModelInferRequest, words: list[str]) -> None:
    with pytest.raises(InvalidTensor) as caught:
        decode(message)
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xff\xff\x7fa", b"\3\0\0\0ab", b"\1\0\0", b"\1\0\0\0a\1\0\0\0b", b"\1\0\0\0a\0", b""],
    ids=["huge length", "length beyond the end", "short prefix", "two for one", "stray byte", "empty"],
)
def test_bytes_with_a_lying_length_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidTensor, match="X"):
        decode(request({"name": "X", "datatype": "BYTES", "shape": [1, 1]}, raw=[raw]))


@pytest.mark.parametrize("entries", [1, 3])
def test_raw_entries_must_match_the_inputs(entries: int) -> None:
    two = ({"name": "A", "datatype": "FP32", "shape": [1]}, {"name": "B", "datatype": "FP32", "shape": [1]})
    with pytest.raises(InvalidArgument, match=rf"{entries} entries for 2 inputs"):
        decode(request(*two, raw=[b"\0" * 4] * entries))


def test_parameters_keep_their_kind() -> None:
    parameters = {
        "b": pb.InferParameter(bool_param=True),
        "d": pb.InferParameter(double_param=1.5),
        "s": pb.InferParameter(string_param="x"),
    }
    decoded = decode_infer_request(request(parameters=parameters), None, 32, NO_MEMORY)
    assert decoded.parameters == {"b": True, "d": 1.5, "s": "x"}


@pytest.mark.parametrize(
    "parameters",
    [
        {"triton_x": pb.InferParameter(bool_param=True)},
        {"empty": pb.InferParameter()},
        {"priority": pb.InferParameter(string_param="high")},
        {"timeout": pb.InferParameter(int64_param=-5)},
    ],
)
def test_reserved_empty_and_wrong_parameters_are_refused(parameters: dict[str, pb.InferParameter]) -> None:
    with pytest.raises(InvalidArgument):
        decode_infer_request(request(parameters=parameters), None, 32, NO_MEMORY)


def test_extensions_that_are_not_offered_say_so() -> None:
    region = {"shared_memory_region": pb.InferParameter(string_param="r")}
    with pytest.raises(Unsupported, match="shared memory"):
        decode(request({"name": "X", "datatype": "FP32", "shape": [1], "parameters": region}))
