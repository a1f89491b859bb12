"""``tensorgate.v1`` messages to and from the core's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.lifecycle import ModelState
from core_grpc.models.registry import ModelEntry
from core_grpc.rpc.classes import row_classes
from core_grpc.rpc.raw_tensors import array_from_raw, checked_datatype, checked_shape, raw_from_array
from core_grpc.rpc.typed_values import array_from_values
from core_grpc.types import Datatype, InferRequest, InferResponse, ModelSpec, RequestedOutput, Tensor, TensorSpec
from protos.tensorgate.v1 import inference_pb2 as pb

VALUES_FIELDS: Mapping[Datatype, str] = {
    Datatype.BOOL: "bool_values",
    Datatype.INT8: "int_values",
    Datatype.INT16: "int_values",
    Datatype.INT32: "int_values",
    Datatype.INT64: "int64_values",
    Datatype.UINT8: "int_values",
    Datatype.UINT16: "int_values",
    Datatype.UINT32: "int64_values",
    Datatype.UINT64: "uint64_values",
    Datatype.FP16: "float_values",
    Datatype.BF16: "float_values",
    Datatype.FP32: "float_values",
    Datatype.FP64: "double_values",
    Datatype.BYTES: "bytes_values",
}
"""The values field of each datatype."""

_BYTES_FIELDS = ("bytes_values", "string_values")
_VALUE_FIELDS = frozenset({"raw", "string_values", *VALUES_FIELDS.values()})

_STATES: Mapping[ModelState, pb.ModelState] = {
    ModelState.LOADING: pb.MODEL_STATE_LOADING,
    ModelState.READY: pb.MODEL_STATE_READY,
    ModelState.UNLOADING: pb.MODEL_STATE_UNLOADING,
    ModelState.UNAVAILABLE: pb.MODEL_STATE_UNAVAILABLE,
}


def decode_predict_request(message: pb.PredictRequest, spec: ModelSpec, deadline: float | None, max_dimensions: int) -> InferRequest:
    """The request in the core's types.

    Args:
        spec: the model's, for inputs that leave their datatype out.

    Raises:
        InvalidArgument, InvalidTensor: the message contradicts itself.
    """
    inputs: dict[str, Tensor] = {}
    for item in message.inputs:
        if item.name in inputs:
            raise InvalidArgument(f"input {quoted(item.name)} is given twice")
        inputs[item.name] = _decode_tensor(item, spec, max_dimensions)
    outputs = tuple(RequestedOutput(name) for name in message.outputs)
    return InferRequest(message.model, message.version, inputs, message.id, outputs, deadline=deadline)


def encode_predict_response(response: InferResponse, request: pb.PredictRequest, spec: ModelSpec) -> pb.PredictResponse:
    """The answer as a message, in the encoding that the request asked for or used itself."""
    in_raw = _answers_raw(request)
    timing = response.timing
    message = pb.PredictResponse(
        model=response.model_name,
        version=response.model_version,
        id=response.id,
        timing=pb.Timing(
            preprocess_ms=timing.preprocess_s * 1e3,
            queue_ms=timing.queue_s * 1e3,
            compute_ms=timing.compute_s * 1e3,
            batch_rows=timing.batch_rows,
        ),
    )
    for name, tensor in response.outputs.items():
        _encode_tensor(message.outputs.add(), name, tensor, in_raw=in_raw)
    for row in row_classes(spec, response.outputs, request.top_k):
        message.classes.add(top=[pb.ClassScore(label=label, index=index, score=score) for label, index, score in row])
    return message


def encode_model(entry: ModelEntry) -> pb.Model:
    """A model version as a message."""
    message = pb.Model(name=entry.name, version=entry.version, state=_STATES[entry.state], reason=entry.reason)
    if spec := entry.spec:
        message.platform = spec.platform
        message.max_batch_size = spec.max_batch_size
        message.inputs.extend(map(_encode_spec, spec.inputs))
        message.outputs.extend(map(_encode_spec, spec.outputs))
        message.description = spec.description
        message.license = spec.license
        message.label_count = max((len(output.labels) for output in spec.outputs), default=0)
    return message


def _decode_tensor(item: pb.Tensor, spec: ModelSpec, max_dimensions: int) -> Tensor:
    name = item.name
    given = [field.name for field, _ in item.ListFields() if field.name in _VALUE_FIELDS]
    if len(given) > 1:
        raise InvalidTensor(f"input {quoted(name)} has values in {' and '.join(given)}: wanted exactly one of them")
    field = given[0] if given else ""
    datatype = checked_datatype(name, item.datatype) if item.datatype else _implied_datatype(name, field, spec)
    shape = checked_shape(name, item.shape, max_dimensions)
    if field in ("raw", ""):
        # Nothing at all is the raw form of an empty tensor; for any other shape the byte count tells.
        return Tensor(datatype, array_from_raw(name, datatype, shape, item.raw))
    wanted = _BYTES_FIELDS if datatype is Datatype.BYTES else (VALUES_FIELDS[datatype],)
    if field not in wanted:
        raise InvalidTensor(f"input {quoted(name)}: {datatype} travels in {' or '.join(wanted)} or raw, got {field}")
    values: Sequence[Any] = getattr(item, field)
    if field == "string_values":
        values = [text.encode() for text in values]
    return Tensor(datatype, array_from_values(name, datatype, shape, values))


def _implied_datatype(name: str, field: str, spec: ModelSpec) -> Datatype:
    """The datatype of an input that names none: BYTES if its values are, else the model's."""
    if field in _BYTES_FIELDS:
        return Datatype.BYTES
    for known in spec.inputs:
        if known.name == name:
            return known.datatype
    names = ", ".join(quoted(known.name) for known in spec.inputs)
    raise InvalidArgument(f"unexpected inference input {quoted(name)} for model '{spec.name}': it takes {names}")


def _answers_raw(request: pb.PredictRequest) -> bool:
    if request.encoding == pb.TENSOR_ENCODING_UNSPECIFIED:
        first = request.inputs[0] if request.inputs else None
        return first is None or bool(first.raw) or bool(first.bytes_values)
    return request.encoding == pb.TENSOR_ENCODING_RAW


def _encode_tensor(message: pb.Tensor, name: str, tensor: Tensor, *, in_raw: bool) -> None:
    message.name = name
    message.datatype = tensor.datatype.value
    message.shape.extend(tensor.array.shape)
    if in_raw:
        message.raw = raw_from_array(tensor.array)
        return
    array = tensor.array
    if tensor.datatype in (Datatype.FP16, Datatype.BF16):
        array = array.astype("float32")
    getattr(message, VALUES_FIELDS[tensor.datatype]).extend(array.reshape(-1).tolist())


def _encode_spec(spec: TensorSpec) -> pb.TensorSpec:
    return pb.TensorSpec(
        name=spec.name,
        datatype=spec.datatype.value,
        shape=spec.shape,
        dimension_names=spec.dimension_names,
        accepts=spec.accepts,
        description=spec.description,
    )
