"""What goes into a REST body comes out of it, for every datatype, in every form, through both JSON parsers."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from core_grpc.rpc.raw_tensors import bytes_array, raw_from_array
from core_grpc.rpc.rest_answers import encode_infer_response
from core_grpc.rpc.rest_codec import decode_infer_body
from core_grpc.types import Array, Datatype, InferRequest, InferResponse, RequestedOutput, Tensor
from tests.unit.core_grpc.rpc.rest_bodies import LIMITS, PADDING_BYTES, one_input, response

SPEC = one_input()
SHAPES = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
DATATYPES = pytest.mark.parametrize("datatype", list(Datatype))


@st.composite
def tensors(draw: st.DrawFn, datatype: Datatype, *, text_only: bool) -> Tensor:
    shape = draw(SHAPES)
    size = int(np.prod(shape))
    if datatype is Datatype.BYTES:
        element = st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(str.encode)
        if not text_only:
            element = element | st.binary(max_size=5)
        return Tensor(datatype, bytes_array(draw(st.lists(element, min_size=size, max_size=size)), shape))
    if datatype is Datatype.BF16:
        bits = draw(arrays(np.uint16, shape))
        return Tensor(datatype, bits.view(ml_dtypes.bfloat16))
    return Tensor(datatype, draw(arrays(datatype.dtype, shape)))


def same(left: Array, right: Array) -> bool:
    """Equal values, shapes and signs of zero; all NaN are one, because JSON has but one."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype.kind not in "fV":
        return bool(left.tolist() == right.tolist())
    with np.errstate(invalid="ignore"):  # A signalling NaN.
        wide, other = left.astype(np.float64), right.astype(np.float64)
    return bool(np.array_equal(wide, other, equal_nan=True) and (np.signbit(wide) == np.signbit(other))[~np.isnan(wide)].all())


def as_request(answer: InferResponse, request: InferRequest, *, nested: bool = False, padding: str = "") -> InferRequest:
    """The answer's outputs, sent back as the inputs of a request."""
    body = encode_infer_response(answer, request)
    length = len(body.data) if body.json_bytes is None else body.json_bytes
    root: dict[str, Any] = json.loads(body.data[:length])
    if nested:
        for output in root["outputs"]:
            if "data" in output:
                values = np.empty(len(output["data"]), object)
                values[:] = output["data"]
                output["data"] = values.reshape(output["shape"]).tolist()
    header = json.dumps({"inputs": root["outputs"], "parameters": {"padding": padding}}).encode()
    is_binary = any("parameters" in output for output in root["outputs"])
    return decode_infer_body(SPEC, header + body.data[length:], str(len(header)) if is_binary else None, LIMITS)


@DATATYPES
@pytest.mark.parametrize("padding", ["", "x" * PADDING_BYTES], ids=["small", "large"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_json(datatype: Datatype, padding: str, nested: bool, data: st.DataObject) -> None:
    tensor = data.draw(tensors(datatype, text_only=True))
    got = as_request(response(Y=tensor), InferRequest("m", "1", {}), nested=nested, padding=padding).inputs["Y"]
    assert got.datatype is datatype
    assert same(got.array, tensor.array)


@DATATYPES
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_binary(datatype: Datatype, data: st.DataObject) -> None:
    tensor = data.draw(tensors(datatype, text_only=False))
    request = InferRequest("m", "1", {}, parameters={"binary_data_output": True})
    got = as_request(response(Y=tensor), request).inputs["Y"]
    assert got.datatype is datatype
    assert got.array.shape == tensor.array.shape
    assert raw_from_array(got.array) == raw_from_array(tensor.array)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kinds=st.lists(st.tuples(st.sampled_from(list(Datatype)), st.booleans()), min_size=1, max_size=4))
def test_json_and_binary_mixed(data: st.DataObject, kinds: list[tuple[Datatype, bool]]) -> None:
    sent = {f"T{n}": data.draw(tensors(datatype, text_only=not binary)) for n, (datatype, binary) in enumerate(kinds)}
    outputs = tuple(RequestedOutput(f"T{n}", {"binary_data": binary}) for n, (_, binary) in enumerate(kinds))
    got = as_request(response(**sent), InferRequest("m", "1", {}, outputs=outputs)).inputs
    assert list(got) == list(sent)
    assert all(same(got[name].array, sent[name].array) for name in sent)
