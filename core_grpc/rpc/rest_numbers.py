"""JSON values to arrays, exactly or not at all.

Integers must be written as integers (``1.0`` is refused for INT32, as is ``1.5``) and fit the datatype; floats may be any number that
stays finite in the datatype, and ``NaN``, ``Infinity`` and ``-Infinity``; BOOL is ``true`` or ``false``; BYTES are strings, taken as
UTF-8. Values are flat in row-major order, or nested exactly as the shape says. An error names the input and the position.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import simdjson

from core_grpc.errors import InvalidTensor, quoted
from core_grpc.rpc.raw_tensors import bytes_array
from core_grpc.rpc.rest_json import ARRAYS, JsonDocument, kind_of
from core_grpc.types import Array, Datatype

FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})

_LENGTH_CAP = 0xFFFFFF
"""simdjson counts the elements of one array no further than this."""

_ENVELOPE_LEVELS = 3
"""Levels of a body around an input's data: the object, the array of inputs, the input."""

_FEW = 1024
"""Elements up to which struct packs a list faster than numpy converts it; also how many are looked at together."""

_PACKED = {
    Datatype.BOOL: "?",
    Datatype.INT8: "b",
    Datatype.INT16: "h",
    Datatype.INT32: "i",
    Datatype.INT64: "q",
    Datatype.UINT8: "B",
    Datatype.UINT16: "H",
    Datatype.UINT32: "I",
    Datatype.UINT64: "Q",
    Datatype.FP16: "e",
    Datatype.FP32: "f",
    Datatype.FP64: "d",
}
"""struct's letters; it refuses what does not fit."""

_WITHOUT_NUMBERS = frozenset({Datatype.BOOL, Datatype.BYTES})

_WANTED = {Datatype.BOOL: "true or false", Datatype.BYTES: "a string"} | dict.fromkeys(FLOATS, "a number")


def _range_of(datatype: Datatype) -> tuple[Any, Any]:
    if datatype in FLOATS:
        largest = int(ml_dtypes.finfo(datatype.dtype).max)  # type: ignore[no-untyped-call]
        return -largest, largest
    limits = np.iinfo(datatype.dtype)
    return int(limits.min), int(limits.max)


_RANGES: Mapping[Datatype, tuple[Any, Any]] = {datatype: _range_of(datatype) for datatype in Datatype if datatype not in _WITHOUT_NUMBERS}
"""The smallest and largest finite value."""

_NUMBER_TYPES = frozenset({int, float})
_ELEMENT_TYPES: dict[Datatype, frozenset[type]] = {
    datatype: _NUMBER_TYPES if datatype in FLOATS else frozenset({int}) for datatype in Datatype if datatype not in _WITHOUT_NUMBERS
} | {Datatype.BOOL: frozenset({bool}), Datatype.BYTES: frozenset({str, bytes})}


def array_from_json(name: str, datatype: Datatype, shape: tuple[int, ...], value: Any, document: JsonDocument) -> Array:
    """The tensor of ``shape`` whose elements are in ``value``: a flat array, or one nested as the shape says.

    Raises:
        InvalidTensor: an element does not fit the datatype, or the elements do not fill the shape.
    """
    array = nested_array_from_json(name, datatype, value, document)
    if array.shape == shape:
        return array
    if array.size != math.prod(shape):
        raise InvalidTensor(f"input {quoted(name)}: shape {_dims(shape)} takes {math.prod(shape)} elements, got {array.size}")
    # Brackets end at the first dimension of 0: shape [1,0,4] is written [[]].
    is_empty_alike = array.size == 0 and shape[: array.ndim] == array.shape
    if array.ndim > 1 and not is_empty_alike:
        raise InvalidTensor(f"input {quoted(name)}: data is nested as {_dims(array.shape)}, wanted it flat or as its shape {_dims(shape)}")
    return array.reshape(shape)


def nested_array_from_json(name: str, datatype: Datatype, value: Any, document: JsonDocument) -> Array:
    """The tensor whose shape is the nesting of ``value``; a bare element is a tensor without dimensions.

    Raises:
        InvalidTensor: an element does not fit the datatype, the nesting is ragged, or deeper than max_tensor_dimensions or
            max_json_depth.
    """
    nesting = _nesting(name, value, document)
    if isinstance(value, simdjson.Array) and datatype not in _WITHOUT_NUMBERS:
        return _narrowed(name, datatype, nesting, _wide_numbers(name, datatype, nesting, value, document)).reshape(nesting)
    flat = [element for _, row in _rows(name, nesting, value) for element in row] if len(nesting) > 1 else value if nesting else [value]
    return _array_from_list(name, datatype, nesting, list(flat))


def _nesting(name: str, value: Any, document: JsonDocument) -> tuple[int, ...]:
    """Lengths of the arrays on the way down along the first elements."""
    lengths: list[int] = []
    while isinstance(value, ARRAYS):
        lengths.append(_length(value))
        value = value[0] if lengths[-1] else None
    limits = document.limits
    if len(lengths) > limits.max_tensor_dimensions:
        raise InvalidTensor(
            f"input {quoted(name)} is nested {len(lengths)} deep: wanted at most {limits.max_tensor_dimensions} (max_tensor_dimensions)"
        )
    if len(lengths) + _ENVELOPE_LEVELS > limits.max_json_depth:
        raise InvalidTensor(
            f"input {quoted(name)} is nested {len(lengths)} deep: wanted a body of at most {limits.max_json_depth} levels (max_json_depth)"
        )
    return tuple(lengths)


def _length(value: list[Any] | simdjson.Array) -> int:
    length = len(value)
    return sum(1 for _ in value) if length >= _LENGTH_CAP else length


def _wide_numbers(name: str, datatype: Datatype, nesting: tuple[int, ...], value: simdjson.Array, document: JsonDocument) -> Array:
    """All numbers of an array, flat, as FP64, INT64 or UINT64."""
    of_type, wide = ("d", np.float64) if datatype in FLOATS else ("u", np.uint64) if datatype is Datatype.UINT64 else ("i", np.int64)
    try:
        flat = np.frombuffer(value.as_buffer(of_type=of_type), wide)  # type: ignore[arg-type]  # a Literal
    except (TypeError, ValueError):
        raise _found_misfit(name, datatype, nesting, value) from None
    # as_buffer flattens whatever it meets: there must be as many numbers as the nesting says (this comes first, because it bounds how long
    # its brackets are), and the brackets must be those of the nesting. Where that is not proven, every row is looked at.
    is_proven = flat.size == math.prod(nesting) and _is_nesting_proven(nesting, flat.size, document)
    if not is_proven and (misfit := _misfit_in_rows(name, datatype, nesting, value)):
        raise misfit
    return flat


def _is_nesting_proven(nesting: tuple[int, ...], size: int, document: JsonDocument) -> bool:
    if len(nesting) == 1:
        return document.is_flat
    return size > 0 and document.is_nested_next(_brackets(nesting))


def _found_misfit(name: str, datatype: Datatype, nesting: tuple[int, ...], value: Any) -> InvalidTensor:
    return _misfit_in_rows(name, datatype, nesting, value) or InvalidTensor(f"input {quoted(name)}: data is not all {_wanted(datatype)}")


def _misfit_in_rows(name: str, datatype: Datatype, nesting: tuple[int, ...], value: Any) -> InvalidTensor | None:
    """The first element that does not fit, found without a list of all."""
    allowed = _ELEMENT_TYPES[datatype]
    low, high = _RANGES[datatype]
    for path, row in _rows(name, nesting, value):
        remaining = iter(row)
        position = 0
        while chunk := list(islice(remaining, _FEW)):
            if not allowed.issuperset(map(type, chunk)) or (datatype not in FLOATS and not low <= min(chunk) <= max(chunk) <= high):
                offset = next(index for index, item in enumerate(chunk) if type(item) not in allowed or not low <= item <= high)
                return _misfit(name, datatype, (*path, position + offset), kind_of(chunk[offset]))
            position += len(chunk)
    return None


def _rows(name: str, nesting: tuple[int, ...], value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The innermost arrays with their indices, in order.

    Raises:
        InvalidTensor: an array on the way has another length than the first of its level.
    """
    if len(path) == len(nesting) - 1:
        yield path, value
        return
    length = nesting[len(path) + 1]
    for index, row in enumerate(value):
        is_array = isinstance(row, ARRAYS)
        if not is_array or _length(row) != length:
            got = f"one of {_length(row)}" if is_array else kind_of(row)
            raise InvalidTensor(f"input {quoted(name)} at {_dims((*path, index))}: ragged nesting, wanted an array of {length}, got {got}")
        yield from _rows(name, nesting, row, (*path, index))


def _brackets(nesting: Sequence[int]) -> bytes:
    """The brackets and commas of an array nested like this."""
    inner = b""
    for length in reversed(nesting):
        inner = b"[" + b",".join([inner] * length) + b"]"
    return inner


def _array_from_list(name: str, datatype: Datatype, nesting: tuple[int, ...], flat: list[Any]) -> Array:
    allowed = _ELEMENT_TYPES[datatype]
    if not allowed.issuperset(map(type, flat)):
        position = next(index for index, element in enumerate(flat) if type(element) not in allowed)
        raise _misfit(name, datatype, _index(nesting, position), kind_of(flat[position]))
    if datatype is Datatype.BYTES:
        return bytes_array([element.encode() if type(element) is str else element for element in flat], nesting)
    if datatype in _PACKED and len(flat) <= _FEW:
        try:
            return np.frombuffer(struct.pack(f"<{len(flat)}{_PACKED[datatype]}", *flat), datatype.dtype).reshape(nesting)
        except (struct.error, OverflowError):
            pass  # The slow way below says which element does not fit.
    try:
        wide = np.array(flat, np.float64 if datatype in FLOATS else datatype.dtype)
    except OverflowError:
        low, high = _RANGES[Datatype.FP64 if datatype in FLOATS else datatype]
        position = next(index for index, number in enumerate(flat) if not low <= number <= high)
        raise _misfit(name, datatype, _index(nesting, position), kind_of(flat[position])) from None
    return _narrowed(name, datatype, nesting, wide).reshape(nesting)


def _narrowed(name: str, datatype: Datatype, nesting: tuple[int, ...], wide: Array) -> Array:
    """The numbers in the datatype's own width; one that does not fit is refused, never wrapped and never made infinite."""
    dtype = datatype.dtype
    if wide.dtype == dtype or not wide.size:
        return wide.astype(dtype, copy=False)
    low, high = _RANGES[datatype]
    if np.minimum.reduce(wide) >= low and np.maximum.reduce(wide) <= high:
        return wide.astype(dtype)
    if datatype not in FLOATS:
        position = int(((wide < low) | (wide > high)).argmax())
        raise _misfit(name, datatype, _index(nesting, position), str(wide[position]))
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    overflowed = np.isinf(narrow) & np.isfinite(wide)
    if overflowed.any():
        position = int(overflowed.argmax())
        raise _misfit(name, datatype, _index(nesting, position), f"{float(wide[position])!r}, which is out of range")
    return narrow


def _misfit(name: str, datatype: Datatype, index: tuple[int, ...], got: str) -> InvalidTensor:
    return InvalidTensor(f"input {quoted(name)} at {_dims(index)}: {datatype} takes {_wanted(datatype)}, got {got}")


def _wanted(datatype: Datatype) -> str:
    return _WANTED.get(datatype) or "an integer from {} to {}".format(*_RANGES[datatype])


def _index(nesting: Sequence[int], position: int) -> tuple[int, ...]:
    """The index of the ``position``-th element of an array of this shape."""
    return tuple(int(index) for index in np.unravel_index(position, nesting)) if nesting else ()


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
