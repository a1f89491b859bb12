"""``tensorgate.v1.InferenceService``: the ergonomic API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from core_grpc.access import check_model
from core_grpc.data_plane import DataPlane
from core_grpc.errors import InvalidArgument, NotFound, quoted
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.sequence_pinning import refuse_spread_sequence
from core_grpc.rpc.tensorgate_codec import decode_predict_request, encode_model, encode_predict_response
from core_grpc.rpc.tensorgate_streams import TensorgateStreams
from core_grpc.settings import LimitsSettings
from core_grpc.types import InferRequest, ModelSpec
from protos.tensorgate.v1 import inference_pb2 as pb


class TensorgateServicer:
    """Predict and the models. RPCs without a method here answer UNIMPLEMENTED."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings) -> None:
        self._data_plane = data_plane
        self._max_dimensions = limits.max_tensor_dimensions
        self._streams = TensorgateStreams(data_plane, limits, self._decoded)

    async def Predict(self, request: pb.PredictRequest, context: RpcContext) -> pb.PredictResponse:
        """One inference."""
        decoded, spec = await self._decoded(request, context)
        refuse_spread_sequence(decoded, context)
        return encode_predict_response(await self._data_plane.infer(decoded), request, spec)

    async def PredictMany(self, requests: AsyncIterator[pb.PredictManyRequest], context: RpcContext) -> pb.PredictManyResponse:
        """Many inferences, one answer."""
        return await self._streams.predict_many(requests, context)

    def Watch(self, request: pb.WatchRequest, context: RpcContext) -> AsyncGenerator[pb.WatchResponse, None]:
        """One inference, its answers as they are made."""
        return self._streams.watch(request, context)

    def Converse(self, requests: AsyncIterator[pb.ConverseRequest], context: RpcContext) -> AsyncGenerator[pb.ConverseResponse, None]:
        """Many inferences, their answers as they are made."""
        return self._streams.converse(requests, context)

    async def ListModels(self, _request: pb.ListModelsRequest, _context: RpcContext) -> pb.ListModelsResponse:
        """Every model version of the repository."""
        return pb.ListModelsResponse(models=map(encode_model, self._data_plane.models()))

    async def GetModel(self, request: pb.GetModelRequest, _context: RpcContext) -> pb.GetModelResponse:
        """One model version, whatever its state; where none is named, the newest that is ready, else the newest, and the default model."""
        name = request.model or self._data_plane.default_model()
        check_model(name)
        entries = [entry for entry in self._data_plane.models() if entry.name == name]
        if request.version:
            entries = [entry for entry in entries if entry.version == request.version]
        if not entries:
            version = f" version {quoted(request.version)}" if request.version else ""
            raise NotFound(f"Request for unknown model: {quoted(name)}{version} is not found")
        return pb.GetModelResponse(model=encode_model(max(entries, key=lambda entry: (entry.state == "READY", int(entry.version or 0)))))

    async def _decoded(self, request: pb.PredictRequest, context: RpcContext) -> tuple[InferRequest, ModelSpec]:
        if not request.model:
            # Named once here, so that decoding, running and answering speak of the same model.
            request.model = self._data_plane.default_model()
        if request.encoding not in pb.TensorEncoding.values():
            raise InvalidArgument(f"encoding: wanted one of {', '.join(pb.TensorEncoding.keys())}, got {request.encoding}")
        spec = await self._data_plane.spec(request.model, request.version, context.deadline)
        return decode_predict_request(request, spec, context.deadline, self._max_dimensions), spec
