"""Nested JSON numbers ↔ ``tensorgate.v1.Tensor``. Without numpy: the facade is a small process, and this is not the fast door."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protos.tensorgate.v1.inference_pb2 import MODEL_STATE_READY, Model, PredictResponse, Tensor, TensorSpec
from rest_facade.errors import FacadeError, invalid_argument
from rest_facade.schemas import PredictBody

_MAX_DIMENSIONS = 32
_DIMENSION_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class _ValueKind:
    """How the values of one datatype travel, and which numbers it holds."""

    field: str
    """The ``*_values`` field of ``Tensor``."""
    kind: type[bool] | type[int] | type[float]
    largest: float = math.inf
    """Inclusive; for floats, infinities are values of their own."""
    smallest: float = -math.inf


def _integers(field: str, bits: int, *, signed: bool) -> _ValueKind:
    largest = 2 ** (bits - signed) - 1
    return _ValueKind(field, int, largest, -largest - 1 if signed else 0)


def _floats(largest: float) -> _ValueKind:
    return _ValueKind("float_values", float, largest, -largest)


_VALUE_KINDS: Mapping[str, _ValueKind] = {
    "BOOL": _ValueKind("bool_values", bool),
    "INT8": _integers("int_values", 8, signed=True),
    "INT16": _integers("int_values", 16, signed=True),
    "INT32": _integers("int_values", 32, signed=True),
    "INT64": _integers("int64_values", 64, signed=True),
    "UINT8": _integers("int_values", 8, signed=False),
    "UINT16": _integers("int_values", 16, signed=False),
    "UINT32": _integers("int64_values", 32, signed=False),
    "UINT64": _integers("uint64_values", 64, signed=False),
    "FP16": _floats(65504.0),
    "BF16": _floats(float.fromhex("0x1.fep127")),
    "FP32": _floats(float.fromhex("0x1.fffffep127")),
    "FP64": _ValueKind("double_values", float),
}
"""By datatype. BYTES is not among them: ``/predict`` takes numbers."""


def tensor_from_body(body: PredictBody, model: Model) -> Tensor:
    """The one input of ``model`` with the values of ``body``. A missing batch dimension is added.

    Raises:
        FacadeError: INVALID_ARGUMENT: not numbers, ragged, out of the datatype's range, contradicted by ``shape``.
            FAILED_PRECONDITION: the model has not exactly one input, or one that takes no numbers. UNAVAILABLE: it is not ready.
    """
    if model.state != MODEL_STATE_READY:
        raise FacadeError(14, f"model '{model.name}' version {model.version} is not ready{f': {model.reason}' if model.reason else ''}")
    spec = _only_input(model)
    value_kind = _VALUE_KINDS.get(spec.datatype)
    if value_kind is None:
        raise FacadeError(9, f"model '{model.name}': input '{spec.name}' is {spec.datatype}, /predict takes numbers: {_elsewhere(model)}")
    flat, nesting = flatten(body.input, value_kind.kind)
    values = _checked(flat, nesting, value_kind, spec.datatype)
    shape = _shape(body.shape, nesting)
    if model.max_batch_size and len(shape) == len(spec.shape) - 1:
        shape = [1, *shape]
    tensor = Tensor(name=spec.name, datatype=spec.datatype, shape=shape)
    getattr(tensor, value_kind.field).extend(values)
    return tensor


def _only_input(model: Model) -> TensorSpec:
    if len(model.inputs) != 1:
        names = ", ".join(spec.name for spec in model.inputs)
        raise FacadeError(9, f"model '{model.name}' has {len(model.inputs)} inputs ({names}), /predict takes one: {_elsewhere(model)}")
    return model.inputs[0]


def _elsewhere(model: Model) -> str:
    return f"use POST /v1/models/{model.name}:predict"


def flatten(nested: Any, kind: type[bool] | type[int] | type[float]) -> tuple[list[Any], list[int]]:
    """The leaves of nested lists in order, and the shape of the nesting (``[]`` for a bare number).

    ``kind`` says what a leaf is: ``bool`` takes booleans; ``int`` and ``float`` take numbers.

    Raises:
        FacadeError: INVALID_ARGUMENT, with the position: a leaf of another type, ragged or too deep nesting.
    """
    shape: list[int] = []
    level = nested
    while isinstance(level, list):
        shape.append(len(level))
        if len(shape) > _MAX_DIMENSIONS:
            raise invalid_argument(f"input: wanted at most {_MAX_DIMENSIONS} dimensions")
        if not level:
            break
        level = level[0]
    leaves = frozenset({bool}) if kind is bool else frozenset({int, float})
    flat: list[Any] = []
    _collect([nested], [1, *shape], (), leaves, flat)
    return flat, shape


def _collect(items: list[Any], shape: Sequence[int], place: tuple[int, ...], leaves: frozenset[type], flat: list[Any]) -> None:
    if len(shape) == 1:
        if not leaves.issuperset(map(type, items)):
            wrong = next(index for index, item in enumerate(items) if type(item) not in leaves)
            wanted = "true or false" if bool in leaves else "a number"
            raise invalid_argument(f"input{_position((*place, wrong))}: wanted {wanted}, got {_described(items[wrong])}")
        flat += items
        return
    for index, item in enumerate(items):
        if not isinstance(item, list) or len(item) != shape[1]:
            raise invalid_argument(f"input{_position((*place, index))}: wanted a list of {shape[1]}, got {_described(item)}")
        _collect(item, shape[1:], (*place, index), leaves, flat)


def _position(place: tuple[int, ...]) -> str:
    """The first index is that of the list put around the whole input."""
    return "".join(f"[{index}]" for index in place[1:])


def _described(item: object) -> str:
    if isinstance(item, list):
        return f"a list of {len(item)}"
    names = {type(None): "null", bool: "a boolean", str: "a string", dict: "an object"}
    return names.get(type(item), "a number")


def _checked(flat: list[Any], nesting: list[int], kind: _ValueKind, datatype: str) -> Iterable[Any]:
    if kind.kind is bool:
        return flat
    # The quick look for the usual case; the rest is looked at one by one, which also finds the position.
    is_finite_floats = kind.kind is float and flat and all(map(math.isfinite, map(_as_float, flat)))
    if is_finite_floats and kind.smallest <= min(flat) and max(flat) <= kind.largest:
        return flat
    return [_checked_value(value, index, nesting, kind, datatype) for index, value in enumerate(flat)]


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _checked_value(value: float, index: int, nesting: list[int], kind: _ValueKind, datatype: str) -> float:
    if kind.kind is float:
        if isinstance(value, float) and not math.isfinite(value):
            return value
        if kind.smallest <= value <= kind.largest and math.isfinite(_as_float(value)):
            return value
    elif (isinstance(value, int) or value.is_integer()) and kind.smallest <= value <= kind.largest:
        return int(value)
    raise invalid_argument(f"input{_index_path(index, nesting)}: wanted a number that {datatype} holds")


def _index_path(index: int, shape: list[int]) -> str:
    path = ""
    for size in reversed(shape):
        index, last = divmod(index, size)
        path = f"[{last}]{path}"
    return path


def _shape(given: list[int] | None, nesting: list[int]) -> list[int]:
    if given is None or given == nesting:
        return nesting
    if len(nesting) > 1:
        raise invalid_argument(f"shape: wanted {nesting}, that of the nesting, or a flat input; got {given}")
    elements, wanted = math.prod(nesting), math.prod(given)
    if elements != wanted or wanted >= _DIMENSION_LIMIT:
        raise invalid_argument(f"shape: {given} has {wanted} elements, input has {elements}")
    return given


def answer_from_response(response: PredictResponse) -> dict[str, Any]:
    """The body of the answer: the first output as nested lists, and the classes where the model has labels.

    Raises:
        FacadeError: FAILED_PRECONDITION: the output is BYTES that are not text.
    """
    tensor = response.outputs[0]
    answer: dict[str, Any] = {
        "output": nest(_values(tensor), tensor.shape),
        "shape": list(tensor.shape),
        "output_name": tensor.name,
        "model": response.model,
        "version": response.version,
    }
    if response.classes:
        answer["classes"] = [
            [{"label": best.label, "index": best.index, "score": shortest(best.score)} for best in row.top] for row in response.classes
        ]
    return answer


def _values(tensor: Tensor) -> list[Any]:
    if tensor.datatype == "BYTES":
        try:
            return [element.decode("utf-8") for element in tensor.bytes_values]
        except UnicodeDecodeError as error:
            raise FacadeError(9, f"output '{tensor.name}' is not text: use POST /v1/predict, which answers base64") from error
    kind = _VALUE_KINDS[tensor.datatype]
    values = getattr(tensor, kind.field)
    return [shortest(value) for value in values] if kind.field == "float_values" else list(values)


def shortest(value: float) -> float:
    """The same FP32 with as few digits as it needs: 0.1 instead of 0.10000000149011612."""
    if not math.isfinite(value):
        return value
    bits = _FP32.pack(value)
    for digits in (6, 7, 8):
        candidate = float(f"{value:.{digits}g}")
        if abs(candidate) <= _VALUE_KINDS["FP32"].largest and _FP32.pack(candidate) == bits:
            return candidate
    return float(f"{value:.9g}")


_FP32 = struct.Struct("<f")


def nest(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Nested lists of ``shape`` with the values of ``flat``, row-major; a bare value for shape ``[]``."""
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return list(flat)
    step = math.prod(shape[1:])
    return [nest(flat[start * step : (start + 1) * step], shape[1:]) for start in range(shape[0])]
