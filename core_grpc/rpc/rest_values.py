"""The values of a ``:predict`` body, whose shape and datatype are the model's to know, as input tensors.

The shape of a value is its nesting. ``{"b64": "…"}`` stands for bytes anywhere a BYTES element may be.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.rpc.rest_json import ARRAYS, OBJECTS, JsonDocument, elements, kind_of, members, plain
from core_grpc.rpc.rest_numbers import nested_array_from_json
from core_grpc.types import Datatype, ModelSpec, Tensor, TensorSpec

_BASE64_KEY = "b64"


def inputs_from_json(spec: ModelSpec, value: Any, document: JsonDocument) -> dict[str, Tensor]:
    """The inputs in ``"inputs"``: an object by name, or the bare value of the only input. A missing batch dimension is added.

    Raises:
        InvalidArgument, InvalidTensor: an unknown name, or a value that does not fit.
    """
    if not isinstance(value, OBJECTS) or _is_base64(spec, value):
        item = _only_input(spec, "inputs")
        return {item.name: _with_batch(spec, item, tensor_from_json(item, value, document))}
    specs = {item.name: item for item in spec.inputs}
    inputs: dict[str, Tensor] = {}
    for name, nested in members(value, "inputs").items():
        if name not in specs:
            raise InvalidArgument(f"unexpected inference input {quoted(name)} for model '{spec.name}': it takes {_names(specs)}")
        inputs[name] = _with_batch(spec, specs[name], tensor_from_json(specs[name], nested, document))
    return inputs


def inputs_from_instances(spec: ModelSpec, value: Any, document: JsonDocument) -> dict[str, Tensor]:
    """The inputs in ``"instances"``, an array of rows: each the value of the only input, or an object by input name.

    Raises:
        InvalidArgument, InvalidTensor: rows that differ in names or shape, or a value that does not fit.
    """
    if not isinstance(value, ARRAYS):
        raise InvalidArgument(f"instances: wanted an array of rows, got {kind_of(value)}")
    if not len(value):
        raise InvalidArgument("instances is empty: wanted at least one row")
    first = value[0]
    if isinstance(first, OBJECTS) and not _is_base64(spec, first):
        inputs = _from_named_rows(spec, elements(value, "instances"), document)
    else:
        item = _only_input(spec, "each row of instances")
        inputs = {item.name: tensor_from_json(item, value, document)}
    return inputs if spec.max_batch_size else {name: _only_row(spec, name, tensor) for name, tensor in inputs.items()}


def _from_named_rows(spec: ModelSpec, rows: list[Any], document: JsonDocument) -> dict[str, Tensor]:
    specs = {item.name: item for item in spec.inputs}
    columns: dict[str, list[Tensor]] = {}
    for position, row in enumerate(rows):
        named = members(row, f"instances[{position}]")
        if position and named.keys() != columns.keys():
            raise InvalidArgument(f"instances[{position}] has the inputs {_names(named)}, wanted those of the first row: {_names(columns)}")
        for name, value in named.items():
            if name not in specs:
                raise InvalidArgument(f"unexpected inference input {quoted(name)} for model '{spec.name}': it takes {_names(specs)}")
            columns.setdefault(name, []).append(tensor_from_json(specs[name], value, document, is_row=True))
    return {name: _stacked(name, column) for name, column in columns.items()}


def _stacked(name: str, column: list[Tensor]) -> Tensor:
    first = column[0]
    for position, tensor in enumerate(column):
        if tensor.array.shape != first.array.shape or tensor.datatype is not first.datatype:
            raise InvalidTensor(
                f"input {quoted(name)} in instances[{position}]: wanted what the first row has, {first.datatype} of shape "
                f"{list(first.array.shape)}, got {tensor.datatype} of shape {list(tensor.array.shape)}"
            )
    return Tensor(first.datatype, np.stack([tensor.array for tensor in column]))


def tensor_from_json(item: TensorSpec, value: Any, document: JsonDocument, *, is_row: bool = False) -> Tensor:
    """The value as a tensor of the shape it is nested as; encoded images as BYTES, one element for each row.

    Raises:
        InvalidTensor: the value does not fit the input.
    """
    datatype = _datatype_of(item, value)
    if datatype is Datatype.BYTES:
        value = _with_bytes(item.name, plain(value), document.limits.max_tensor_dimensions)
    array = nested_array_from_json(item.name, datatype, value, document)
    if datatype is not item.datatype and array.ndim < 2:
        array = array.reshape(1) if is_row else array.reshape(-1, 1)
    return Tensor(datatype, array)


def _datatype_of(item: TensorSpec, value: Any) -> Datatype:
    """BYTES for an input of images whose first element is no number, else the input's own."""
    if item.accepts != "image":
        return item.datatype
    while isinstance(value, ARRAYS) and len(value):
        value = value[0]
    if isinstance(value, str):
        raise InvalidTensor(f'input {quoted(item.name)} takes an encoded image as {{"b64": "…"}} (base64), or numbers: got a string')
    return Datatype.BYTES if isinstance(value, OBJECTS) else item.datatype


def _with_bytes(name: str, value: Any, levels_left: int) -> Any:
    """The value with each ``{"b64": …}`` replaced by its bytes."""
    if type(value) is list:
        # Deeper nesting than any tensor's is left as it is, for nested_array_from_json to refuse.
        return [_with_bytes(name, item, levels_left - 1) for item in value] if levels_left else value
    if type(value) is not dict:
        return value
    if value.keys() != {_BASE64_KEY} or type(value[_BASE64_KEY]) is not str:
        raise InvalidTensor(f'input {quoted(name)}: wanted a string or an object {{"b64": "…"}}, got another object')
    return base64_bytes(name, value[_BASE64_KEY])


def base64_bytes(name: str, text: str | bytes) -> bytes:
    """What a BYTES element of input ``name`` stands for.

    Raises:
        InvalidTensor: it is not base64.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise InvalidTensor(f"input {quoted(name)}: wanted standard base64 with padding, got something else") from error


def _with_batch(spec: ModelSpec, item: TensorSpec, tensor: Tensor) -> Tensor:
    """The tensor, with the batch dimension in front when exactly that is missing."""
    if spec.max_batch_size and tensor.datatype is item.datatype and tensor.array.ndim == len(item.shape) - 1:
        return Tensor(tensor.datatype, tensor.array[np.newaxis])
    return tensor


def _only_row(spec: ModelSpec, name: str, tensor: Tensor) -> Tensor:
    if len(tensor.array) != 1:
        raise InvalidTensor(
            f"instances: model '{spec.name}' has no batch dimension: wanted one row, got {len(tensor.array)} for {quoted(name)}"
        )
    return Tensor(tensor.datatype, tensor.array[0])


def _only_input(spec: ModelSpec, where: str) -> TensorSpec:
    if len(spec.inputs) != 1:
        raise InvalidArgument(
            f"{where}: model '{spec.name}' has several inputs: wanted an object with {_names(item.name for item in spec.inputs)}"
        )
    return spec.inputs[0]


def _is_base64(spec: ModelSpec, value: Mapping[str, Any]) -> bool:
    """Whether an object is one BYTES element rather than inputs by name."""
    return list(value) == [_BASE64_KEY] and all(item.name != _BASE64_KEY for item in spec.inputs)


def _names(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in names)
