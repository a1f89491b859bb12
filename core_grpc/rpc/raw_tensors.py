"""A tensor's raw form: little-endian, row-major bytes, the same on gRPC and in REST's binary extension.

BOOL is one byte an element; a BYTES element is its length in four little-endian bytes, then the bytes
(https://github.com/kserve/open-inference-protocol, "Tensor Data").
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from core_grpc.errors import InvalidTensor, quoted
from core_grpc.types import DATATYPES, Array, Datatype

_LENGTH = struct.Struct("<I")

_MOST_ELEMENTS = 1 << 60
"""Of a shape whose dimensions of 0 count as 1: numpy refuses larger ones even where they have no elements."""


def checked_datatype(name: str, datatype: str) -> Datatype:
    """The datatype of wire name ``datatype``.

    Raises:
        InvalidTensor: there is none.
    """
    known = DATATYPES.get(datatype)
    if known is None:
        raise InvalidTensor(f"input {quoted(name)} has datatype {quoted(datatype)}: wanted one of {', '.join(DATATYPES)}")
    return known


def checked_shape(name: str, shape: Sequence[int], max_dimensions: int) -> tuple[int, ...]:
    """The shape as a tuple.

    Raises:
        InvalidTensor: a dimension is negative, there are too many, or their product is beyond any tensor.
    """
    if len(shape) > max_dimensions:
        raise InvalidTensor(f"input {quoted(name)} has {len(shape)} dimensions: wanted at most {max_dimensions} (max_tensor_dimensions)")
    product = 1
    for dimension in shape:
        if dimension < 0:
            raise InvalidTensor(f"input {quoted(name)} has shape {_shape(shape)}: wanted no negative dimensions")
        product *= dimension or 1
    if product >= _MOST_ELEMENTS:
        raise InvalidTensor(f"input {quoted(name)} has shape {_shape(shape)}: wanted dimensions whose product is below 2^60")
    return tuple(shape)


def array_from_raw(name: str, datatype: Datatype, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """The tensor whose raw form is ``data``; a read-only view of it where the datatype allows.

    Args:
        name: the input's name, for the error text.
        shape: checked by ``checked_shape``.

    Raises:
        InvalidTensor: the bytes are not exactly those that shape and datatype ask for.
    """
    if datatype is Datatype.BYTES:
        return bytes_array(_split_elements(name, shape, data), shape)
    wanted = math.prod(shape) * datatype.itemsize
    if len(data) != wanted:
        raise InvalidTensor(
            f"input byte size mismatch for input {quoted(name)}: {datatype} of shape {_shape(shape)} takes {wanted} bytes, got {len(data)}"
        )
    array = np.frombuffer(data, datatype.dtype)
    if datatype is Datatype.BOOL and array.view(np.uint8).max(initial=0) > 1:
        # Any other byte would be neither true nor false to half of the operators that read it.
        raise InvalidTensor(f"input {quoted(name)} has a BOOL byte that is neither 0 nor 1")
    return array.reshape(shape)


def raw_from_array(array: Array) -> bytes:
    """The raw form of a tensor's array; object arrays are BYTES."""
    if array.dtype != object:
        return array.tobytes()
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def bytes_array(elements: Sequence[bytes], shape: tuple[int, ...]) -> Array:
    """The BYTES tensor of ``elements``, row-major; their number must be the product of ``shape``."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _split_elements(name: str, shape: tuple[int, ...], data: bytes | memoryview) -> list[bytes]:
    """The elements of a BYTES tensor's raw form."""
    wanted = math.prod(shape)
    # Every element takes at least its four length bytes: refuse before a loop is sized by the caller's word.
    if len(data) < wanted * _LENGTH.size:
        raise InvalidTensor(
            f"input byte size mismatch for input {quoted(name)}: BYTES of shape {_shape(shape)} has {wanted} elements "
            f"of at least 4 bytes each, got {len(data)} bytes"
        )
    elements: list[bytes] = []
    position, end = 0, len(data)
    while len(elements) < wanted:
        if end - position < _LENGTH.size:
            raise InvalidTensor(
                f"input {quoted(name)}: BYTES of shape {_shape(shape)} has {wanted} elements, the data ends after {len(elements)}"
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length > end - position:
            raise InvalidTensor(
                f"input {quoted(name)}: BYTES element {len(elements)} says it has {length} bytes, only {end - position} are left"
            )
        elements.append(bytes(data[position : position + length]))
        position += length
    if position != end:
        raise InvalidTensor(
            f"input byte size mismatch for input {quoted(name)}: BYTES of shape {_shape(shape)} has {wanted} elements, "
            f"{end - position} bytes are left over"
        )
    return elements


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
