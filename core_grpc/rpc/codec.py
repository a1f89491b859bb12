"""Open Inference Protocol messages to and from the core's types: protobuf stops here.

An input's values come from exactly one place: a region of shared memory, the next entry of ``raw_input_contents``, or its own typed
``contents``; never the last two in one request. Answers always use ``raw_output_contents``, one entry for each output in order, empty for
outputs in shared memory: stock clients read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.rpc.parameter_messages import parameter_values, set_parameters
from core_grpc.rpc.raw_tensors import array_from_raw, checked_datatype, checked_shape, raw_from_array
from core_grpc.rpc.request_parameters import check_parameters
from core_grpc.rpc.typed_values import array_from_values
from core_grpc.shared_memory.regions import REGION, SharedMemory
from core_grpc.types import Datatype, InferRequest, InferResponse, ParameterValue, Place, RequestedOutput, Tensor
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

_NO_PLACES: Mapping[str, Place] = {}
_PARAMETER_FIELDS: Mapping[type, str] = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def decode_infer_request(message: pb.ModelInferRequest, deadline: float | None, max_dimensions: int, memory: SharedMemory) -> InferRequest:
    """The request in the core's types; arrays are views of the message's bytes where the datatype allows.

    Raises:
        InvalidArgument, InvalidTensor: the message contradicts itself or the protocol.
        Unsupported, NotFound: it names shared memory, which is not allowed or not registered.
    """
    inputs = _decode_inputs(message, max_dimensions, memory)
    parameters: dict[str, ParameterValue] = {}
    if message.parameters:
        parameters = parameter_values(message.parameters, where="the request")
        check_parameters(parameters)
    outputs = memory.with_places(tuple(_decode_output(item) for item in message.outputs)) if message.outputs else ()
    return InferRequest(message.model_name, message.model_version, inputs, message.id, outputs, parameters, deadline)


def encode_infer_response(response: InferResponse, requested: tuple[RequestedOutput, ...] = ()) -> pb.ModelInferResponse:
    """The answer as a message. Outputs that are ``requested`` in shared memory are written there, and their entry is empty.

    Raises:
        InvalidArgument: an output does not fit its place in shared memory.
    """
    places = {output.name: output.place for output in requested if output.place is not None} if requested else _NO_PLACES
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=response.model_version, id=response.id)
    for name, tensor in response.outputs.items():
        output = message.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.array.shape)
        raw = raw_from_array(tensor.array)
        if name in places:
            set_parameters(output.parameters, places[name].write(raw), _PARAMETER_FIELDS)
            raw = b""
        message.raw_output_contents.append(raw)
    if response.parameters:
        set_parameters(message.parameters, response.parameters, _PARAMETER_FIELDS)
    return message


def _decode_inputs(message: pb.ModelInferRequest, max_dimensions: int, memory: SharedMemory) -> dict[str, Tensor]:
    raw = message.raw_input_contents
    if raw:
        _check_raw_count(message)
    inputs: dict[str, Tensor] = {}
    position = 0
    for item in message.inputs:
        name = item.name
        if name in inputs:
            raise InvalidArgument(f"input {quoted(name)} is given twice")
        datatype = checked_datatype(name, item.datatype)
        shape = checked_shape(name, item.shape, max_dimensions)
        if item.parameters and REGION in item.parameters:
            array = array_from_raw(name, datatype, shape, _shared_bytes(message, item, memory))
        elif raw:
            _refuse_contents_beside_raw(message, item)
            array = array_from_raw(name, datatype, shape, raw[position])
            position += 1
        else:
            array = array_from_values(name, datatype, shape, _typed_values(item, datatype))
        inputs[name] = Tensor(datatype, array)
    return inputs


def _check_raw_count(message: pb.ModelInferRequest) -> None:
    """There is a raw entry for each input that is not in shared memory."""
    wanted = sum(REGION not in item.parameters for item in message.inputs)
    if len(message.raw_input_contents) == wanted:
        return
    for item in message.inputs:
        _refuse_contents_beside_raw(message, item)
    raise InvalidArgument(f"raw_input_contents has {len(message.raw_input_contents)} entries for {wanted} inputs: wanted one for each")


def _shared_bytes(message: pb.ModelInferRequest, item: pb.ModelInferRequest.InferInputTensor, memory: SharedMemory) -> bytes:
    where = f"input {quoted(item.name)}"
    if item.HasField("contents"):
        raise InvalidTensor(f"{where} for model {quoted(message.model_name)} has both contents and a shared memory region")
    return memory.read_input(where, parameter_values(item.parameters, where=where))


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
    return RequestedOutput(item.name, parameter_values(item.parameters, where=f"output {quoted(item.name)}"))
