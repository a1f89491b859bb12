"""``/generate`` and ``/generate_stream``: one JSON object in, one out, or one for each answer.

Triton's extension
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md). In a request,
``id`` is the request's; a member that is named like an input is that input's value, a scalar or an array whose elements fill the input's
shape from its last dimension; ``parameters`` holds more members of both kinds; any other scalar is a parameter of the request. An answer
has ``model_name``, ``model_version``, ``id`` if there was one, and each output by name: a scalar where it has one element, else a flat
array. Numbers and BYTES are written as for ``:predict`` (``rest_predict.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.rpc.content_types import JSON_TYPE
from core_grpc.rpc.request_parameters import check_parameters
from core_grpc.rpc.rest_answers import JsonFromArray, RestBody, json_from_array, json_from_array_with_tokens
from core_grpc.rpc.rest_json import JsonDocument, kind_of, members, parse_document, text
from core_grpc.rpc.rest_predict import value_for_json
from core_grpc.rpc.rest_values import tensor_from_json
from core_grpc.settings import LimitsSettings
from core_grpc.types import InferRequest, InferResponse, ModelSpec, ParameterValue, Tensor, TensorSpec


def decode_generate_body(spec: ModelSpec, body: bytes, limits: LimitsSettings, deadline: float | None = None) -> InferRequest:
    """The request in a JSON body.

    Raises:
        InvalidArgument, InvalidTensor: the body is not as the module describes, or a value does not fit its input.
    """
    document = parse_document(body, limits)
    specs = {item.name: item for item in spec.inputs}
    inputs: dict[str, Tensor] = {}
    parameters: dict[str, ParameterValue] = {}
    request_id = ""
    for name, value, is_nested in _members(document):
        if name in specs:
            if name in inputs:
                raise InvalidArgument(f"input {quoted(name)} is given twice: in the body and in its parameters")
            inputs[name] = _filled(specs[name], tensor_from_json(specs[name], value, document))
        elif name == "id" and not is_nested:
            request_id = text(value, "id")
        elif isinstance(value, bool | int | float | str):
            parameters[name] = value
        else:
            raise InvalidArgument(f"{quoted(name)} is no input of model '{spec.name}': a parameter is a scalar, got {kind_of(value)}")
    check_parameters(parameters)
    return InferRequest(spec.name, spec.version, inputs, request_id, parameters=parameters, deadline=deadline)


def encode_generate_response(response: InferResponse) -> RestBody:
    """The answer's body."""
    body = _encoded(response, json_from_array)
    if b"null" in body:  # A number that is not finite, or just a text.
        body = _encoded(response, json_from_array_with_tokens)
    return RestBody(JSON_TYPE, body)


def event(data: bytes) -> bytes:
    """A server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html); ``data`` has no line ends."""
    return b"data: " + data + b"\n\n"


def error_event(message: str) -> bytes:
    """The event by which a stream that has begun says that it failed."""
    return event(orjson.dumps({"error": message}))


def _members(document: JsonDocument) -> Iterator[tuple[str, Any, bool]]:
    """Name, value, and whether it came from ``parameters``."""
    for name, value in members(document.root, "body").items():
        if name != "parameters":
            yield name, value, False
            continue
        for inner, nested in members(value, "parameters").items():
            yield inner, nested, True


def _filled(item: TensorSpec, tensor: Tensor) -> Tensor:
    """A scalar or flat array in the input's shape: fixed dimensions are filled from the last, the last variable one takes the rest."""
    array = tensor.array
    if tensor.datatype is not item.datatype or array.ndim > 1 or array.ndim == len(item.shape):
        return tensor
    sizes: list[int] = []
    left = array.size
    for size in reversed(item.shape):
        sizes.append(left if size == -1 else size)
        left = 1 if size == -1 else left // size if size and left % size == 0 else -1
    if left != 1:
        raise InvalidTensor(f"input {quoted(item.name)}: {array.size} elements do not fill the shape {list(item.shape)}")
    return Tensor(tensor.datatype, array.reshape(sizes[::-1]))


def _encoded(response: InferResponse, json_from: JsonFromArray) -> bytes:
    answer: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        answer["id"] = response.id
    for name, tensor in response.outputs.items():
        flat = tensor.array.reshape(-1)
        answer[name] = value_for_json(name, tensor.datatype, flat[0:1].reshape(()) if flat.size == 1 else flat, json_from)
    for name, value in response.parameters.items():
        answer.setdefault(name, value)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
