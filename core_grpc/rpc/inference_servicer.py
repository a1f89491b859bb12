"""``inference.GRPCInferenceService``: decode, call the data plane, encode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from core_grpc.data_plane import DataPlane
from core_grpc.errors import NotFound
from core_grpc.rpc.codec import decode_infer_request, encode_infer_response
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.model_stream import model_stream
from core_grpc.rpc.sequence_pinning import refuse_spread_sequence
from core_grpc.rpc.shared_memory_access import memory_for
from core_grpc.settings import LimitsSettings
from core_grpc.shared_memory.regions import SharedMemory, release_places
from core_grpc.types import TensorSpec
from protos.inference import grpc_service_pb2 as pb


class InferenceServicer:
    """The Open Inference Protocol. RPCs without a method here answer UNIMPLEMENTED."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings, memory: SharedMemory) -> None:
        self._data_plane = data_plane
        self._limits = limits
        self._memory = memory

    async def ServerLive(self, _request: pb.ServerLiveRequest, _context: RpcContext) -> pb.ServerLiveResponse:
        """Whether the server is alive."""
        return pb.ServerLiveResponse(live=self._data_plane.live())

    async def ServerReady(self, _request: pb.ServerReadyRequest, _context: RpcContext) -> pb.ServerReadyResponse:
        """Whether the server is ready."""
        return pb.ServerReadyResponse(ready=self._data_plane.ready())

    async def ModelReady(self, request: pb.ModelReadyRequest, _context: RpcContext) -> pb.ModelReadyResponse:
        """Whether a model version is ready; false for an unknown one, as clients of every Triton release expect."""
        try:
            return pb.ModelReadyResponse(ready=self._data_plane.model_ready(request.name, request.version))
        except NotFound:
            return pb.ModelReadyResponse(ready=False)

    async def ServerMetadata(self, _request: pb.ServerMetadataRequest, _context: RpcContext) -> pb.ServerMetadataResponse:
        """The server's name, version and extensions."""
        metadata = self._data_plane.server_metadata()
        return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, _context: RpcContext) -> pb.ModelMetadataResponse:
        """A model's versions, platform, inputs and outputs."""
        metadata = await self._data_plane.model_metadata(request.name, request.version)
        return pb.ModelMetadataResponse(
            name=metadata.name,
            versions=metadata.versions,
            platform=metadata.platform,
            inputs=_tensor_metadata(metadata.inputs),
            outputs=_tensor_metadata(metadata.outputs),
        )

    async def ModelInfer(self, request: pb.ModelInferRequest, context: RpcContext) -> pb.ModelInferResponse:
        """One inference."""
        decoded = decode_infer_request(request, context.deadline, self._limits.max_tensor_dimensions, memory_for(self._memory, context))
        refuse_spread_sequence(decoded, context)
        if not decoded.outputs:
            return encode_infer_response(await self._data_plane.infer(decoded))
        try:
            return encode_infer_response(await self._data_plane.infer(decoded), decoded.outputs)
        finally:
            release_places(decoded.outputs)

    def ModelStreamInfer(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: RpcContext
    ) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        """Any number of requests and answers on one stream."""
        return model_stream(self._data_plane, self._limits, memory_for(self._memory, context), requests, context)


def _tensor_metadata(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype.value, shape=spec.shape) for spec in specs]
