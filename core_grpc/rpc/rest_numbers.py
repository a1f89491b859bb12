"""JSON values to arrays and back, exactly or not at all.

In: integers must be written as integers (``1.0`` is refused for INT32, as is ``1.5``) and fit the datatype; floats may be any number that
stays finite in the datatype, and ``NaN``, ``Infinity`` and ``-Infinity``; BOOL is ``true`` or ``false``; BYTES are strings, taken as
UTF-8. Values are flat in row-major order, or nested exactly as the shape says. An error names the input and the position.

Out: FP16 and BF16 are written as the FP32 numbers they equal; 64-bit integers as numbers with all digits; non-finite values as the bare
tokens ``NaN``, ``Infinity`` and ``-Infinity``, as Triton does and its clients read (strict JSON parsers do not: ask for binary data);
BYTES as strings, which must be UTF-8.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import simdjson

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.rpc.raw_tensors import bytes_array
from core_grpc.rpc.rest_json import JsonDocument, kind_of, plain
from core_grpc.types import Array, Datatype

FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})
HALVES = frozenset({Datatype.FP16, Datatype.BF16})

_LENGTH_CAP = 0xFFFFFF
"""simdjson counts the elements of one array no further than this."""

_ENVELOPE_LEVELS = 3
"""Levels of a body around an input's data: the object, the array of inputs, the input."""

_FEW = 1024
"""Elements up to which struct packs a list faster than numpy converts it."""

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

_WANTED = {Datatype.BOOL: "true or false", Datatype.BYTES: "a string"} | dict.fromkeys(FLOATS, "a number")


def _range_of(datatype: Datatype) -> tuple[Any, Any]:
    if datatype in FLOATS:
        largest = int(ml_dtypes.finfo(datatype.dtype).max)  # type: ignore[no-untyped-call]
        return -largest, largest
    limits = np.iinfo(datatype.dtype)
    return int(limits.min), int(limits.max)


_RANGES: Mapping[Datatype, tuple[Any, Any]] = {
    datatype: _range_of(datatype) for datatype in Datatype if datatype not in (Datatype.BOOL, Datatype.BYTES)
}
"""The smallest and largest finite value."""

_NUMBER_TYPES = frozenset({int, float})
_ELEMENT_TYPES: dict[Datatype, frozenset[type]] = {
    datatype: _NUMBER_TYPES if datatype in FLOATS else frozenset({int})
    for datatype in Datatype
    if datatype not in (Datatype.BOOL, Datatype.BYTES)
} | {Datatype.BOOL: frozenset({bool}), Datatype.BYTES: frozenset({str, bytes})}


def array_from_json(name: str, datatype: Datatype, shape: tuple[int, ...], value: Any, document: JsonDocument) -> Array:
    """The tensor of ``shape`` whose elements are in ``value``: a flat array, or one nested as the shape says.

    Raises:
        InvalidTensor: an element does not fit the datatype, or the elements do not fill the shape.
    """
    array = nested_array_from_json(name, datatype, value, document)
    if array.shape == shape:
        return array
    if array.ndim > 1 and array.size == math.prod(shape):
        raise InvalidTensor(f"input {quoted(name)}: data is nested as {_dims(array.shape)}, wanted it flat or as its shape {_dims(shape)}")
    if array.size != math.prod(shape):
        raise InvalidTensor(f"input {quoted(name)}: shape {_dims(shape)} takes {math.prod(shape)} elements, got {array.size}")
    return array.reshape(shape)


def nested_array_from_json(name: str, datatype: Datatype, value: Any, document: JsonDocument) -> Array:
    """The tensor whose shape is the nesting of ``value``; a bare element is a tensor without dimensions.

    Raises:
        InvalidTensor: an element does not fit the datatype, the nesting is ragged, or deeper than max_tensor_dimensions or
            max_json_depth.
    """
    nesting = _nesting(name, value, document)
    if isinstance(value, simdjson.Array):
        array = _array_from_proxy(datatype, nesting, value, document)
        if array is not None:
            return _narrowed(name, datatype, nesting, array).reshape(nesting)
    return _array_from_list(name, datatype, nesting, plain(value))


def json_from_array(name: str, datatype: Datatype, array: Array) -> Any:
    """The array, nested as its shape is, as something ``orjson.dumps`` with OPT_SERIALIZE_NUMPY writes.

    orjson writes non-finite numbers as null: where there is one in the text, ``json_from_array_with_tokens`` has to be used instead.

    Args:
        name: the output's name, for the error text.

    Raises:
        InvalidArgument: a BYTES element is not UTF-8.
    """
    if datatype is Datatype.BYTES:
        return _texts(name, array)
    if datatype in HALVES:
        array = array.astype(np.float32)
    if not array.ndim:
        return array[()]
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def json_from_array_with_tokens(name: str, datatype: Datatype, array: Array) -> Any:
    """As ``json_from_array``, with non-finite numbers as ``NaN``, ``Infinity`` and ``-Infinity``."""
    value = json_from_array(name, datatype, array)
    if datatype not in FLOATS:
        return value
    parts = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
    odd = array[~np.isfinite(array)].tolist()
    tokens = [b"NaN" if math.isnan(number) else b"Infinity" if number > 0 else b"-Infinity" for number in odd]
    return orjson.Fragment(b"".join(piece for pair in zip(parts, [*tokens, b""], strict=True) for piece in pair))


def _texts(name: str, array: Array) -> Any:
    try:
        flat = [element.decode("utf-8") for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"output {quoted(name)} has BYTES that are not UTF-8 text, which JSON cannot carry: ask for it as binary data"
        ) from error
    if array.ndim == 1:
        return flat
    nested = np.empty(len(flat), dtype=object)
    nested[:] = flat
    return nested.reshape(array.shape).tolist()


def _nesting(name: str, value: Any, document: JsonDocument) -> tuple[int, ...]:
    """Lengths of the arrays on the way down along the first elements."""
    lengths: list[int] = []
    while isinstance(value, list | simdjson.Array):
        length = len(value)
        if length >= _LENGTH_CAP and isinstance(value, simdjson.Array):
            length = sum(1 for _ in value)
        lengths.append(length)
        value = value[0] if length else None
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


def _array_from_proxy(datatype: Datatype, nesting: tuple[int, ...], value: simdjson.Array, document: JsonDocument) -> Array | None:
    """Wide numbers, flat; None when something is not as it should be and the slow way must say what and where."""
    if datatype in (Datatype.BOOL, Datatype.BYTES):
        return None
    of_type, wide = ("d", np.float64) if datatype in FLOATS else ("u", np.uint64) if datatype is Datatype.UINT64 else ("i", np.int64)
    try:
        flat = np.frombuffer(value.as_buffer(of_type=of_type), wide)  # type: ignore[arg-type]  # a Literal
    except (TypeError, ValueError):
        return None
    # as_buffer flattens whatever it meets. One dimension: as many numbers as elements. More: the brackets must be those of the nesting
    # too; the count comes first, because it bounds how long they are.
    if flat.size != math.prod(nesting):
        return None
    if len(nesting) > 1 and not (flat.size and document.is_nested_next(_brackets(nesting))):
        return None
    return flat


def _brackets(nesting: Sequence[int]) -> bytes:
    """The brackets and commas of an array nested like this."""
    inner = b""
    for length in reversed(nesting):
        inner = b"[" + b",".join([inner] * length) + b"]"
    return inner


def _array_from_list(name: str, datatype: Datatype, nesting: tuple[int, ...], value: Any) -> Array:
    flat = _flattened(name, nesting, value)
    allowed = _ELEMENT_TYPES[datatype]
    if not allowed.issuperset(map(type, flat)):
        position = next(index for index, element in enumerate(flat) if type(element) not in allowed)
        raise _misfit(name, datatype, nesting, position, kind_of(flat[position]))
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
        raise _out_of_range(name, datatype, nesting, flat) from None
    return _narrowed(name, datatype, nesting, wide).reshape(nesting)


def _flattened(name: str, nesting: tuple[int, ...], value: Any) -> list[Any]:
    """The elements in row-major order."""
    if not nesting:
        return [value]
    flat: list[Any] = value
    for depth in range(1, len(nesting)):
        length = nesting[depth]
        for index, row in enumerate(flat):
            if type(row) is not list or len(row) != length:
                got = f"{len(row)} elements" if type(row) is list else kind_of(row)
                raise InvalidTensor(
                    f"input {quoted(name)} at {_at(nesting[:depth], index)}: ragged nesting, wanted {length} elements, got {got}"
                )
        flat = [element for row in flat for element in row]
    return flat


def _narrowed(name: str, datatype: Datatype, nesting: tuple[int, ...], wide: Array) -> Array:
    """The numbers in the datatype's own width; one that does not fit is refused, never wrapped and never made infinite."""
    dtype = datatype.dtype
    if wide.dtype == dtype or not wide.size:
        return wide.astype(dtype, copy=False)
    low, high = _RANGES[datatype]
    if np.minimum.reduce(wide) >= low and np.maximum.reduce(wide) <= high:
        return wide.astype(dtype)
    if datatype not in FLOATS:
        raise _out_of_range(name, datatype, nesting, wide.tolist())
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    overflowed = np.isinf(narrow) & np.isfinite(wide)
    if overflowed.any():
        position = int(overflowed.argmax())
        raise _misfit(name, datatype, nesting, position, f"{float(wide[position])!r}, which is out of range")
    return narrow


def _out_of_range(name: str, datatype: Datatype, nesting: tuple[int, ...], flat: Sequence[Any]) -> InvalidTensor:
    low, high = _RANGES[Datatype.FP64 if datatype in FLOATS else datatype]
    position = next(index for index, number in enumerate(flat) if not low <= number <= high)
    return _misfit(name, datatype, nesting, position, kind_of(flat[position]))


def _misfit(name: str, datatype: Datatype, nesting: tuple[int, ...], position: int, got: str) -> InvalidTensor:
    wanted = _WANTED.get(datatype) or "an integer from {} to {}".format(*_RANGES[datatype])
    return InvalidTensor(f"input {quoted(name)} at {_at(nesting, position)}: {datatype} takes {wanted}, got {got}")


def _at(nesting: Sequence[int], position: int) -> str:
    """The index of the ``position``-th element of an array of this shape."""
    index: list[int] = []
    for length in reversed(nesting):
        position, remainder = divmod(position, length)
        index.append(remainder)
    return _dims(index[::-1])


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
