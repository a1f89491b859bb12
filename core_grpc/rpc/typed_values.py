"""A tensor's typed form: repeated numbers in a protobuf field, to and from arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from core_grpc.errors import InvalidTensor, quoted
from core_grpc.rpc.raw_tensors import bytes_array
from core_grpc.types import Array, Datatype

_EXACT = frozenset({Datatype.BOOL, Datatype.INT32, Datatype.INT64, Datatype.UINT64, Datatype.FP32, Datatype.FP64})
"""Datatypes whose field cannot hold a value that the datatype cannot."""

_FLOATS = frozenset({Datatype.FP16, Datatype.BF16})


def array_from_values(name: str, datatype: Datatype, shape: tuple[int, ...], values: Sequence[Any]) -> Array:
    """The tensor of ``values``, row-major.

    Raises:
        InvalidTensor: their number is not the product of the shape, or a value does not fit the datatype.
    """
    wanted = math.prod(shape)
    if len(values) != wanted:
        dims = ",".join(map(str, shape))
        raise InvalidTensor(f"input {quoted(name)}: shape [{dims}] takes {wanted} elements, got {len(values)}")
    if datatype is Datatype.BYTES:
        return bytes_array(list(values), shape)
    if datatype in _EXACT:
        return np.fromiter(values, datatype.dtype, wanted).reshape(shape)
    if datatype in _FLOATS:
        return np.fromiter(values, np.float32, wanted).astype(datatype.dtype).reshape(shape)
    return _narrowed(name, datatype, np.fromiter(values, np.int64, wanted)).reshape(shape)


def _narrowed(name: str, datatype: Datatype, wide: Array) -> Array:
    """The integers in the datatype's own width; a value out of its range is refused, never wrapped."""
    limits = np.iinfo(datatype.dtype)
    outside = (wide < limits.min) | (wide > limits.max)
    if outside.any():
        position = int(outside.argmax())
        raise InvalidTensor(
            f"input {quoted(name)} element {position}: {datatype} holds {limits.min} to {limits.max}, got {int(wide[position])}"
        )
    return wide.astype(datatype.dtype)
