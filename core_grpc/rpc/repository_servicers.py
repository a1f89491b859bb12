"""Loading and unloading models on request, by every door. Whether a door may is decided at the edge and by ``models.control``."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from concurrent.futures import Executor

from google.api.httpbody_pb2 import HttpBody

from core_grpc.data_plane import DataPlane
from core_grpc.errors import InvalidArgument, Unsupported, quoted
from core_grpc.lifecycle import ModelState
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.http_body import http_json
from core_grpc.rpc.off_loop import INLINE_JSON_BYTES, off_loop
from core_grpc.rpc.override_codec import decode_override
from core_grpc.rpc.parameter_messages import parameter_values
from core_grpc.rpc.rest_json import kind_of, members, parse_document
from core_grpc.rpc.tensorgate_codec import encode_model
from core_grpc.settings import LimitsSettings
from protos.inference import grpc_service_pb2 as pb
from protos.tensorgate.rest.v1 import rest_pb2
from protos.tensorgate.v1 import inference_pb2


class RepositoryServicer:
    """Of ``inference.GRPCInferenceService``."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    async def RepositoryModelLoad(self, request: pb.RepositoryModelLoadRequest, _context: RpcContext) -> pb.RepositoryModelLoadResponse:
        """Loads a model, or loads it anew."""
        _check_repository(request.repository_name)
        await self._data_plane.load(request.model_name, decode_override(request.model_name, parameter_values(request.parameters)))
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, _context: RpcContext
    ) -> pb.RepositoryModelUnloadResponse:
        """Unloads a model."""
        _check_repository(request.repository_name)
        with_steps = _unload_dependents(parameter_values(request.parameters))
        await self._data_plane.unload(request.model_name, with_models_of_steps=with_steps)
        return pb.RepositoryModelUnloadResponse()


class RestRepositoryServicer:
    """Of ``tensorgate.rest.v1.Rest``."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings, pool: Executor) -> None:
        """``pool`` reads large bodies: a load's may have the model's files."""
        self._data_plane = data_plane
        self._limits = limits
        self._pool = pool

    async def RepositoryModelLoad(self, request: rest_pb2.RestBodyRequest, _context: RpcContext) -> HttpBody:
        """Loads a model, or loads it anew."""
        is_large = len(request.body.data) > INLINE_JSON_BYTES
        override = await off_loop(lambda: decode_override(request.model, self._load_parameters(request)), self._pool, is_large=is_large)
        await self._data_plane.load(request.model, override)
        return http_json({})

    async def RepositoryModelUnload(self, request: rest_pb2.RestBodyRequest, _context: RpcContext) -> HttpBody:
        """Unloads a model."""
        with_steps = _unload_dependents(self._parameters(request))
        await self._data_plane.unload(request.model, with_models_of_steps=with_steps)
        return http_json({})

    def _load_parameters(self, request: rest_pb2.RestBodyRequest) -> Mapping[str, str | bytes]:
        return {key: _load_value(key, value) for key, value in self._parameters(request).items()}

    def _parameters(self, request: rest_pb2.RestBodyRequest) -> Mapping[str, object]:
        if not request.body.data.strip():
            return {}
        return members(parse_document(request.body.data, self._limits).root.get("parameters", {}), "parameters")


class TensorgateRepositoryServicer:
    """Of ``tensorgate.v1.InferenceService``."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    async def LoadModel(self, request: inference_pb2.LoadModelRequest, _context: RpcContext) -> inference_pb2.LoadModelResponse:
        """Loads a model, or loads it anew."""
        await self._data_plane.load(request.model)
        entries = [entry for entry in self._data_plane.models() if entry.name == request.model and entry.state is ModelState.READY]
        return inference_pb2.LoadModelResponse(models=map(encode_model, entries))

    async def UnloadModel(self, request: inference_pb2.UnloadModelRequest, _context: RpcContext) -> inference_pb2.UnloadModelResponse:
        """Unloads a model."""
        await self._data_plane.unload(request.model)
        return inference_pb2.UnloadModelResponse()


def _check_repository(name: str) -> None:
    if name:
        raise Unsupported(f"repository {quoted(name)}: this server has one repository, which has no name")


def _load_value(key: str, value: object) -> str | bytes:
    """A parameter of a REST load: text, with files in base64."""
    if not isinstance(value, str):
        raise InvalidArgument(f"parameter {quoted(key)}: wanted a string, got {kind_of(value)}")
    if not key.startswith("file:"):
        return value
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise InvalidArgument(f"parameter {quoted(key)}: wanted standard base64 with padding, got something else") from None


def _unload_dependents(parameters: Mapping[str, object]) -> bool:
    """Triton's word for the models of a pipeline's steps, although it is the pipeline that depends on them."""
    for key, value in parameters.items():
        if key != "unload_dependents" or not isinstance(value, bool):
            raise InvalidArgument(f"parameter {quoted(key)}: wanted unload_dependents, true or false")
    return bool(parameters.get("unload_dependents", False))
