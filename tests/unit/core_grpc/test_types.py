"""Datatypes and their numpy dtypes; values that cannot be changed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from core_grpc.types import DATATYPES, Datatype, InferRequest, Tensor, TensorSpec, datatype_from_dtype

SIZES = {
    "BOOL": 1, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": 0,
}  # fmt: skip
"""Open Inference Protocol: bytes an element takes in raw contents. BYTES elements carry their length."""


def test_the_datatypes_are_the_protocols() -> None:
    assert {datatype.value for datatype in Datatype} == SIZES.keys() == DATATYPES.keys()


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_sizes(name: str, size: int) -> None:
    assert DATATYPES[name].itemsize == size


@pytest.mark.parametrize("datatype", Datatype)
def test_dtype_and_datatype_are_inverse(datatype: Datatype) -> None:
    assert datatype_from_dtype(datatype.dtype) is datatype


@pytest.mark.parametrize("datatype", [datatype for datatype in Datatype if datatype is not Datatype.BYTES])
def test_arrays_are_little_endian(datatype: Datatype) -> None:
    one = np.ones(1, dtype=datatype.dtype)
    assert one.dtype.isnative
    assert datatype.dtype.byteorder in "<=|"


def test_bf16_is_not_fp16() -> None:
    assert Datatype.BF16.dtype == np.dtype(ml_dtypes.bfloat16)
    assert np.array([1.0], Datatype.BF16.dtype).tobytes() == b"\x80\x3f"
    assert np.array([1.0], Datatype.FP16.dtype).tobytes() == b"\x00\x3c"


@pytest.mark.parametrize("dtype", [">f4", "complex64", "U4", "datetime64[s]"])
def test_a_dtype_without_a_datatype_is_a_key_error(dtype: str) -> None:
    with pytest.raises(KeyError):
        datatype_from_dtype(np.dtype(dtype))


def test_values_are_frozen() -> None:
    tensor = Tensor(Datatype.FP32, np.zeros((1,), np.float32))
    with pytest.raises(AttributeError):
        tensor.datatype = Datatype.INT8  # type: ignore[misc]


def test_a_request_asks_for_everything_by_default() -> None:
    request = InferRequest("m", "", {})
    assert request.outputs == ()
    assert request.deadline is None
    assert request.parameters == {}


def test_a_spec_promises_nothing_by_default() -> None:
    spec = TensorSpec("x", Datatype.FP32, (-1, 4))
    assert (spec.accepts, spec.labels, spec.optional) == ("", (), False)
