"""What a server tells about its models beyond their metadata: configuration, statistics, the repository's index. Triton's extensions."""

from __future__ import annotations

from collections.abc import Iterator

from google.api.httpbody_pb2 import HttpBody

from core_grpc.data_plane import DataPlane
from core_grpc.errors import InvalidArgument, Unsupported, quoted
from core_grpc.lifecycle import ModelState
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.http_body import http_json
from core_grpc.rpc.message_json import plain_json
from core_grpc.rpc.model_config_codec import encode_model_config
from core_grpc.rpc.rest_json import kind_of, parse_document
from core_grpc.rpc.statistics_codec import encode_statistics
from core_grpc.settings import LimitsSettings
from protos.inference import grpc_service_pb2 as pb
from protos.tensorgate.rest.v1 import rest_pb2


class IntrospectionServicer:
    """Of ``inference.GRPCInferenceService``."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    async def ModelConfig(self, request: pb.ModelConfigRequest, _context: RpcContext) -> pb.ModelConfigResponse:
        """A model's configuration."""
        return pb.ModelConfigResponse(config=encode_model_config(await self._data_plane.model_config(request.name, request.version)))

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, _context: RpcContext) -> pb.ModelStatisticsResponse:
        """The counters of all models, of one, or of one version."""
        return encode_statistics(self._data_plane.statistics(request.name, request.version))

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, _context: RpcContext) -> pb.RepositoryIndexResponse:
        """Every model version with its state."""
        if request.repository_name:
            raise Unsupported(f"repository {quoted(request.repository_name)}: this server has one repository, which has no name")
        return pb.RepositoryIndexResponse(models=list(_index(self._data_plane, only_ready=request.ready)))


class RestIntrospectionServicer:
    """Of ``tensorgate.rest.v1.Rest``."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings) -> None:
        self._data_plane = data_plane
        self._limits = limits

    async def ModelConfig(self, request: rest_pb2.RestRequest, _context: RpcContext) -> HttpBody:
        """A model's configuration."""
        return http_json(plain_json(encode_model_config(await self._data_plane.model_config(request.model, request.version))))

    async def ModelStatistics(self, request: rest_pb2.RestRequest, _context: RpcContext) -> HttpBody:
        """The counters of one model, or of one version."""
        return http_json(plain_json(encode_statistics(self._data_plane.statistics(request.model, request.version))))

    async def ServerStatistics(self, _request: rest_pb2.RestRequest, _context: RpcContext) -> HttpBody:
        """The counters of all models."""
        return http_json(plain_json(encode_statistics(self._data_plane.statistics())))

    async def RepositoryIndex(self, request: rest_pb2.RestBodyRequest, _context: RpcContext) -> HttpBody:
        """Every model version with its state; of a model without a version only the name and the reason."""
        only_ready = False
        if request.body.data.strip():
            only_ready = parse_document(request.body.data, self._limits).root.get("ready", False)
            if not isinstance(only_ready, bool):
                raise InvalidArgument(f"ready: wanted true or false, got {kind_of(only_ready)}")
        entries = [plain_json(entry) for entry in _index(self._data_plane, only_ready=only_ready)]
        return http_json([{key: value for key, value in entry.items() if value} for entry in entries])


def _index(data_plane: DataPlane, *, only_ready: bool) -> Iterator[pb.RepositoryIndexResponse.ModelIndex]:
    for entry in data_plane.models():
        if not only_ready or entry.state is ModelState.READY:
            yield pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name, version=entry.version, state=entry.state.value, reason=entry.reason
            )
