"""The two short services: one tensor in, one out, no tensor vocabulary.

``inference.ModelService`` serves the default model in floats; ``trt.InferenceService`` serves a named model in raw bytes. Both accept a
shape without its batch dimension and refuse by name a model that does not have exactly one input and one output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from core_grpc.data_plane import DataPlane
from core_grpc.errors import FailedPrecondition, InvalidTensor, quoted
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.raw_tensors import array_from_raw, checked_shape, raw_from_array
from core_grpc.settings import LimitsSettings
from core_grpc.types import Array, Datatype, InferRequest, InferResponse, ModelSpec, Tensor, TensorSpec
from protos.inference import model_service_pb2 as model_pb
from protos.trt import inference_service_pb2 as trt_pb


class ModelServicer:
    """``inference.ModelService``."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings) -> None:
        self._data_plane = data_plane
        self._max_dimensions = limits.max_tensor_dimensions

    async def Predict(self, request: model_pb.PredictRequest, context: RpcContext) -> model_pb.PredictResponse:
        """Runs the default model on floats."""
        spec = await self._data_plane.spec(self._data_plane.default_model(), deadline=context.deadline)
        wanted = _only_input(spec)
        shape = _with_batch(spec, wanted, checked_shape(wanted.name, request.shape, self._max_dimensions))
        array = _array_from_floats(wanted, shape, request.data)
        response = await _infer(self._data_plane, spec, Tensor(wanted.datatype, array), context)
        (output,) = response.outputs.values()
        floats = output.array.astype(np.float32, copy=False).reshape(-1)
        return model_pb.PredictResponse(result=floats.tolist(), latency_ms=_engine_s(response) * 1e3)


class TrtServicer:
    """``trt.InferenceService``."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings) -> None:
        self._data_plane = data_plane
        self._max_dimensions = limits.max_tensor_dimensions

    async def Predict(self, request: trt_pb.InferRequest, context: RpcContext) -> trt_pb.InferResponse:
        """Runs a named model on raw bytes."""
        spec = await self._data_plane.spec(request.model_name, deadline=context.deadline)
        wanted = _only_input(spec)
        shape = _with_batch(spec, wanted, checked_shape(wanted.name, request.shape, self._max_dimensions))
        array = array_from_raw(wanted.name, wanted.datatype, shape, request.input_tensor)
        response = await _infer(self._data_plane, spec, Tensor(wanted.datatype, array), context)
        (output,) = response.outputs.values()
        return trt_pb.InferResponse(output_tensor=raw_from_array(output.array), inference_time_ms=_engine_s(response) * 1e3)


def _only_input(spec: ModelSpec) -> TensorSpec:
    """The model's input, if it has one input and one output and both are numbers."""
    if len(spec.inputs) != 1 or len(spec.outputs) != 1:
        raise FailedPrecondition(
            f"model '{spec.name}' has {len(spec.inputs)} inputs and {len(spec.outputs)} outputs: this service wants one of each, "
            "use inference.GRPCInferenceService/ModelInfer"
        )
    if Datatype.BYTES in (spec.inputs[0].datatype, spec.outputs[0].datatype):
        raise FailedPrecondition(f"model '{spec.name}' has BYTES tensors: this service wants numbers, use ModelInfer")
    return spec.inputs[0]


def _with_batch(spec: ModelSpec, wanted: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, with a batch dimension of 1 where exactly that is missing."""
    return (1, *shape) if spec.max_batch_size and len(shape) == len(wanted.shape) - 1 else shape


def _array_from_floats(wanted: TensorSpec, shape: tuple[int, ...], data: Sequence[float]) -> Array:
    """Floats in the input's datatype; a value that it cannot hold is refused, never rounded into another."""
    if len(data) != math.prod(shape):
        raise InvalidTensor(f"input '{wanted.name}': shape {list(shape)} takes {math.prod(shape)} elements, got {len(data)}")
    floats = np.fromiter(data, np.float32, len(data)).reshape(shape)
    if wanted.datatype in (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64):
        return floats.astype(wanted.datatype.dtype)
    with np.errstate(invalid="ignore"):
        converted = floats.astype(wanted.datatype.dtype)
        wrong = converted.astype(np.float32) != floats
    if wrong.any():
        position = int(wrong.argmax())
        raise InvalidTensor(
            f"input '{wanted.name}' element {position}: {wanted.datatype} cannot hold {quoted(str(floats.reshape(-1)[position]))}"
        )
    return converted


async def _infer(data_plane: DataPlane, spec: ModelSpec, tensor: Tensor, context: RpcContext) -> InferResponse:
    return await data_plane.infer(InferRequest(spec.name, spec.version, {spec.inputs[0].name: tensor}, deadline=context.deadline))


def _engine_s(response: InferResponse) -> float:
    return response.timing.queue_s + response.timing.compute_s
