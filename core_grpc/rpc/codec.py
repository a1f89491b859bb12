"""Open Inference Protocol messages to and from the core's types: protobuf stops here.

An input's values come from exactly one place: the next entry of ``raw_input_contents``, or its own typed ``contents``; never both in
one request. Answers always use ``raw_output_contents``, one entry for each output in order: stock clients read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from core_grpc.errors import InvalidArgument, InvalidTensor, Unsupported, quoted
from core_grpc.rpc.raw_tensors import array_from_raw, checked_datatype, checked_shape, raw_from_array
from core_grpc.rpc.request_parameters import check_parameters
from core_grpc.rpc.typed_values import array_from_values
from core_grpc.types import Datatype, InferRequest, InferResponse, ParameterValue, RequestedOutput, Tensor
from protos.inference import grpc_service_pb2 as pb

CONTENTS_FIELDS: Mapping[Datatype, str] = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}
"""The typed field of each datatype; FP16 and BF16 have none and travel raw."""

_PARAMETER_FIELDS: Mapping[type, str] = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def decode_infer_request(message: pb.ModelInferRequest, deadline: float | None, max_dimensions: int) -> InferRequest:
    """The request in the core's types; arrays are views of the message's bytes where the datatype allows.

    Raises:
        InvalidArgument, InvalidTensor: the message contradicts itself or the protocol.
        Unsupported: it asks for an extension that is not offered.
    """
    inputs = _decode_inputs(message, max_dimensions)
    parameters: dict[str, ParameterValue] = {}
    if message.parameters:
        parameters = decode_parameters("the request", message.parameters)
        check_parameters(parameters)
    outputs = tuple(_decode_output(item) for item in message.outputs) if message.outputs else ()
    return InferRequest(message.model_name, message.model_version, inputs, message.id, outputs, parameters, deadline)


def encode_infer_response(response: InferResponse) -> pb.ModelInferResponse:
    """The answer as a message."""
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=response.model_version, id=response.id)
    for name, tensor in response.outputs.items():
        message.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.array.shape)
        message.raw_output_contents.append(raw_from_array(tensor.array))
    if response.parameters:
        _encode_parameters(message.parameters, response.parameters)
    return message


def decode_parameters(where: str, parameters: Mapping[str, pb.InferParameter]) -> dict[str, ParameterValue]:
    """Parameters as plain values.

    Raises:
        InvalidArgument: a parameter has no value.
    """
    decoded: dict[str, ParameterValue] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidArgument(f"parameter {quoted(key)} of {where} has no value")
        decoded[key] = getattr(parameter, choice)
    return decoded


def _encode_parameters(message: Any, parameters: Mapping[str, ParameterValue]) -> None:
    for key, value in parameters.items():
        field = _PARAMETER_FIELDS[type(value)]
        setattr(message[key], field, value)


def _decode_inputs(message: pb.ModelInferRequest, max_dimensions: int) -> dict[str, Tensor]:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        for item in message.inputs:
            _refuse_contents_beside_raw(message, item)
        raise InvalidArgument(f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs: wanted one for each")
    inputs: dict[str, Tensor] = {}
    for position, item in enumerate(message.inputs):
        name = item.name
        if name in inputs:
            raise InvalidArgument(f"input {quoted(name)} is given twice")
        if item.parameters:
            _refuse_shared_memory("input", name, item.parameters)
        datatype = checked_datatype(name, item.datatype)
        shape = checked_shape(name, item.shape, max_dimensions)
        if raw:
            _refuse_contents_beside_raw(message, item)
            array = array_from_raw(name, datatype, shape, raw[position])
        else:
            array = array_from_values(name, datatype, shape, _typed_values(item, datatype))
        inputs[name] = Tensor(datatype, array)
    return inputs


def _typed_values(item: pb.ModelInferRequest.InferInputTensor, datatype: Datatype) -> Sequence[Any]:
    """The values of the one typed field that is set, which must be the datatype's."""
    name = item.name
    wanted = CONTENTS_FIELDS.get(datatype)
    if wanted is None:
        raise InvalidTensor(f"input {quoted(name)}: {datatype} has no typed contents, send it in raw_input_contents")
    given = [field.name for field, _ in item.contents.ListFields()]
    if given and given != [wanted]:
        raise InvalidTensor(f"input {quoted(name)}: {datatype} travels in {wanted}, got {', '.join(given)}")
    if not given and not _is_empty(item.shape):
        raise InvalidTensor(f"input {quoted(name)} has no data: wanted {wanted} or an entry of raw_input_contents")
    values: Sequence[Any] = getattr(item.contents, wanted)
    return values


def _is_empty(shape: Sequence[int]) -> bool:
    return 0 in shape


def _refuse_contents_beside_raw(message: pb.ModelInferRequest, item: pb.ModelInferRequest.InferInputTensor) -> None:
    if item.HasField("contents"):
        raise InvalidTensor(
            f"contents field must not be specified when using raw_input_contents for {quoted(item.name)} "
            f"for model {quoted(message.model_name)}"
        )


def _decode_output(item: pb.ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    _refuse_shared_memory("output", item.name, item.parameters)
    parameters = decode_parameters(f"output {quoted(item.name)}", item.parameters)
    if parameters.get("classification"):
        raise Unsupported(f"output {quoted(item.name)}: the classification extension is not offered")
    return RequestedOutput(item.name, parameters)


def _refuse_shared_memory(kind: str, name: str, parameters: Mapping[str, Message]) -> None:
    if "shared_memory_region" in parameters:
        raise Unsupported(f"{kind} {quoted(name)}: the shared memory extensions are not offered")
