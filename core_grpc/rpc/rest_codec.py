"""Request bodies of the Open Inference Protocol's REST form to the core's types; ``rest_answers.py`` is the way back.

Fields that nobody reads are refused by name, at the top and in each tensor; parameters are open, but those the protocol knows are checked.
An optional field that is null counts as absent. A BYTES input with the parameter ``"content_type": "base64"`` has base64 for data. Checks
against the model are the data plane's; here a body only has to agree with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.rpc.raw_tensors import array_from_raw, bytes_array, checked_datatype, checked_shape
from core_grpc.rpc.request_parameters import check_parameters
from core_grpc.rpc.rest_binary import BinaryTail, json_length, raw_binary_input
from core_grpc.rpc.rest_json import ARRAYS, JsonDocument, elements, kind_of, members, parse_document, refuse_unknown, text
from core_grpc.rpc.rest_numbers import array_from_json
from core_grpc.rpc.rest_values import base64_bytes
from core_grpc.settings import LimitsSettings
from core_grpc.shared_memory.regions import REGION, SharedMemory
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec, ParameterValue, RequestedOutput, Tensor

_REQUEST_FIELDS = frozenset({"id", "parameters", "inputs", "outputs"})
NO_SHARED_MEMORY = SharedMemory(is_allowed=False)

_INPUT_FIELDS = frozenset({"name", "shape", "datatype", "parameters", "data"})
_BASE64_CONTENT = "base64"
"""MLServer's value of the input parameter ``content_type``: BYTES elements are base64, since JSON strings cannot hold every byte."""
_OUTPUT_FIELDS = frozenset({"name", "parameters"})


def decode_infer_body(
    spec: ModelSpec,
    body: bytes,
    length_header: str | None,
    limits: LimitsSettings,
    deadline: float | None = None,
    *,
    memory: SharedMemory = NO_SHARED_MEMORY,
) -> InferRequest:
    """The request in a ``/v2/models/{model}/infer`` body: JSON, JSON with raw tensors, or one raw tensor.

    Args:
        length_header: the value of Inference-Header-Content-Length; None without the header.

    Raises:
        InvalidArgument, InvalidTensor: the body contradicts itself or the protocol.
        Unsupported, NotFound: it names shared memory, which is not allowed or not registered.
    """
    if length_header is None:
        return _decode_json(spec, body, None, limits, deadline, memory=memory)
    length = json_length(length_header, len(body))
    if length:
        return _decode_json(spec, body[:length], BinaryTail(memoryview(body)[length:]), limits, deadline, memory=memory)
    name, tensor = raw_binary_input(spec, body)
    return InferRequest(spec.name, spec.version, {name: tensor}, parameters={"binary_data_output": True}, deadline=deadline)


def _decode_json(
    spec: ModelSpec, json_part: bytes, tail: BinaryTail | None, limits: LimitsSettings, deadline: float | None, *, memory: SharedMemory
) -> InferRequest:
    document = parse_document(json_part, limits)
    root = document.root
    refuse_unknown(root, _REQUEST_FIELDS, "body")
    inputs: dict[str, Tensor] = {}
    for position, item in enumerate(elements(_required(root, "inputs", "body"), "inputs")):
        name, tensor = _decode_input(position, item, document, tail, memory)
        if name in inputs:
            raise InvalidArgument(f"input {quoted(name)} is given twice")
        inputs[name] = tensor
    if tail:
        tail.finish()
    parameters = {} if root.get("parameters") is None else _decode_request_parameters(root["parameters"])
    # The outputs last: their places in shared memory are held from here on, and nothing may fail between.
    return InferRequest(
        model_name=spec.name,
        model_version=spec.version,
        inputs=inputs,
        id="" if root.get("id") is None else text(root["id"], "id"),
        outputs=() if root.get("outputs") is None else memory.with_places(_decode_outputs(root["outputs"])),
        parameters=parameters,
        deadline=deadline,
    )


def _decode_request_parameters(value: Any) -> dict[str, ParameterValue]:
    parameters = _decode_parameters("parameters", value)
    check_parameters(parameters)
    return parameters


def _decode_input(position: int, item: Any, document: JsonDocument, tail: BinaryTail | None, memory: SharedMemory) -> tuple[str, Tensor]:
    fields = members(item, "an element of inputs")
    name = text(_required(fields, "name", f"inputs[{position}]"), "name of an input")
    if not fields.keys() <= _INPUT_FIELDS:
        refuse_unknown(fields, _INPUT_FIELDS, f"input {quoted(name)}")
    for key in ("datatype", "shape"):
        if key not in fields:
            raise InvalidTensor(f"input {quoted(name)} has no {key}")
    datatype = checked_datatype(name, text(fields["datatype"], "datatype of an input"))
    shape = _decode_shape(name, fields["shape"], document.limits)
    parameters = (
        _decode_parameters(f"input {quoted(name)}: parameters", fields["parameters"]) if fields.get("parameters") is not None else {}
    )
    return name, Tensor(datatype, _array(name, datatype, shape, fields, parameters, _Sources(document, tail, memory)))


class _Sources(NamedTuple):
    """Where an input's values may be."""

    document: JsonDocument
    tail: BinaryTail | None
    memory: SharedMemory


def _array(  # noqa: PLR0917 (the one caller above)
    name: str,
    datatype: Datatype,
    shape: tuple[int, ...],
    fields: Mapping[str, Any],
    parameters: Mapping[str, ParameterValue],
    sources: _Sources,
) -> Array:
    """The values, from the one place where they are."""
    if REGION in parameters:
        if "data" in fields or "binary_data_size" in parameters:
            raise InvalidTensor(f"input {quoted(name)} has values beside a shared memory region: wanted one of them")
        return array_from_raw(name, datatype, shape, sources.memory.read_input(f"input {quoted(name)}", parameters))
    if "binary_data_size" in parameters:
        if "data" in fields:
            raise InvalidTensor(f"input {quoted(name)} has both data and binary_data_size: wanted one of them")
        if sources.tail is None:
            raise InvalidTensor(f"input {quoted(name)} has binary_data_size, but there is no header Inference-Header-Content-Length")
        return array_from_raw(name, datatype, shape, sources.tail.take(name, _size_bytes(name, parameters["binary_data_size"])))
    if "data" not in fields:
        raise InvalidTensor(f"input {quoted(name)} has no data: wanted data, or the parameter binary_data_size")
    array = array_from_json(name, datatype, shape, fields["data"], sources.document)
    if datatype is Datatype.BYTES and parameters.get("content_type") == _BASE64_CONTENT:
        return bytes_array([base64_bytes(name, element) for element in array.reshape(-1).tolist()], shape)
    return array


def _size_bytes(name: str, value: ParameterValue) -> int:
    if type(value) is not int or value < 0:
        raise InvalidTensor(f"input {quoted(name)}: binary_data_size: wanted a non-negative integer, got {kind_of(value)}")
    return value


def _decode_shape(name: str, value: Any, limits: LimitsSettings) -> tuple[int, ...]:
    if not isinstance(value, ARRAYS):
        raise InvalidTensor(f"input {quoted(name)}: shape: wanted an array of integers, got {kind_of(value)}")
    dimensions = list(value)
    for dimension in dimensions:
        if type(dimension) is not int:
            raise InvalidTensor(f"input {quoted(name)}: shape: wanted non-negative integers, got {kind_of(dimension)}")
    return checked_shape(name, dimensions, limits.max_tensor_dimensions)


def _decode_outputs(value: Any) -> tuple[RequestedOutput, ...]:
    return tuple(_decode_output(f"outputs[{position}]", item) for position, item in enumerate(elements(value, "outputs")))


def _decode_output(where: str, item: Any) -> RequestedOutput:
    fields = members(item, where)
    name = text(_required(fields, "name", where), f"{where}.name")
    where = f"output {quoted(name)}"
    refuse_unknown(fields, _OUTPUT_FIELDS, where)
    if fields.get("parameters") is None:
        return RequestedOutput(name)
    parameters = _decode_parameters(f"{where}: parameters", fields["parameters"])
    if not isinstance(parameters.get("binary_data", False), bool):
        raise InvalidArgument(f"{where}: binary_data: wanted true or false, got {kind_of(parameters['binary_data'])}")
    return RequestedOutput(name, parameters)


def _decode_parameters(where: str, value: Any) -> dict[str, ParameterValue]:
    parameters = dict(members(value, where))
    for key, parameter in parameters.items():
        if not isinstance(parameter, bool | int | float | str):
            raise InvalidArgument(f"{where}: {quoted(key)}: wanted true, false, a number or a string, got {kind_of(parameter)}")
        if isinstance(parameter, int) and not -(1 << 63) <= parameter < 1 << 64:
            parameters[key] = float(parameter)  # As orjson reads it.
    return parameters


def _required(fields: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in fields:
        raise InvalidArgument(f"{where} has no {key}")
    return fields[key]
