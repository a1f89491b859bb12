"""Trace and log settings, over gRPC and REST. An update that names nothing is a read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from core_grpc.data_plane import DataPlane
from core_grpc.errors import InvalidArgument, quoted
from core_grpc.observability.log_settings import LogControl
from core_grpc.observability.tracing import Tracer
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.http_body import http_json
from core_grpc.rpc.parameter_messages import parameter_values, set_parameters
from core_grpc.rpc.rest_json import elements, kind_of, members, parse_document
from core_grpc.settings import LimitsSettings
from protos.inference import grpc_service_pb2 as pb
from protos.tensorgate.rest.v1 import rest_pb2

_TRACE_MODE = "triton"
_LOG_FIELDS: Mapping[type, str] = {bool: "bool_param", int: "uint32_param", str: "string_param"}


def _trace_answer(tracer: Tracer, model: str) -> dict[str, tuple[str, ...]]:
    settings = tracer.settings(model)
    numbers = {name: (str(getattr(settings, name)),) for name in ("trace_rate", "trace_count", "log_frequency")}
    return {"trace_file": (tracer.file,), "trace_level": settings.trace_level, **numbers, "trace_mode": (_TRACE_MODE,)}


class SettingsServicer:
    """Of ``inference.GRPCInferenceService``."""

    def __init__(self, data_plane: DataPlane, tracer: Tracer, logs: LogControl) -> None:
        self._data_plane = data_plane
        self._tracer = tracer
        self._logs = logs

    async def TraceSetting(self, request: pb.TraceSettingRequest, _context: RpcContext) -> pb.TraceSettingResponse:
        """Reads and changes what is traced, globally or of one model."""
        if request.model_name:
            self._data_plane.versions(request.model_name)
        if request.settings:
            self._tracer.update(request.model_name, {name: list(setting.value) for name, setting in request.settings.items()})
        answer = pb.TraceSettingResponse()
        for name, values in _trace_answer(self._tracer, request.model_name).items():
            answer.settings[name].value.extend(values)
        return answer

    async def LogSettings(self, request: pb.LogSettingsRequest, _context: RpcContext) -> pb.LogSettingsResponse:
        """Reads and changes what is logged."""
        changes = parameter_values(request.settings, "log setting")
        answer = pb.LogSettingsResponse()
        set_parameters(answer.settings, asdict(self._logs.update(changes) if changes else self._logs.settings), _LOG_FIELDS)
        return answer


class RestSettingsServicer:
    """Of ``tensorgate.rest.v1.Rest``."""

    def __init__(self, data_plane: DataPlane, tracer: Tracer, logs: LogControl, limits: LimitsSettings) -> None:
        self._data_plane = data_plane
        self._tracer = tracer
        self._logs = logs
        self._limits = limits

    async def TraceSettingRead(self, request: rest_pb2.RestRequest, _context: RpcContext) -> HttpBody:
        """What is traced, globally or of one model."""
        return self._traces(request.model)

    async def TraceSettingUpdate(self, request: rest_pb2.RestBodyRequest, _context: RpcContext) -> HttpBody:
        """Changes what is traced."""
        if request.model:
            self._data_plane.versions(request.model)
        changes = {name: _trace_values(name, value) for name, value in self._body(request).items()}
        self._tracer.update(request.model, changes)
        return self._traces(request.model)

    async def LogSettingsRead(self, _request: rest_pb2.RestRequest, _context: RpcContext) -> HttpBody:
        """What is logged."""
        return http_json(asdict(self._logs.settings))

    async def LogSettingsUpdate(self, request: rest_pb2.RestBodyRequest, _context: RpcContext) -> HttpBody:
        """Changes what is logged."""
        changes: dict[str, bool | int | str] = {}
        for name, value in self._body(request).items():
            if not isinstance(value, bool | int | str):
                raise InvalidArgument(f"log setting {quoted(name)}: wanted true, false, a number or a string, got {kind_of(value)}")
            changes[name] = value
        return http_json(asdict(self._logs.update(changes)))

    def _traces(self, model: str) -> HttpBody:
        if model:
            self._data_plane.versions(model)
        answer = _trace_answer(self._tracer, model)
        return http_json({name: list(values) if name == "trace_level" else values[0] for name, values in answer.items()})

    def _body(self, request: rest_pb2.RestBodyRequest) -> Mapping[str, Any]:
        if not request.body.data.strip():
            return {}
        return members(parse_document(request.body.data, self._limits).root, "body")


def _trace_values(name: str, value: Any) -> Sequence[str]:
    """A setting of a REST body: a text, a number, an array of these, or null for the setting that is above."""
    if value is None:
        return ()
    values = [value] if isinstance(value, str | int) and not isinstance(value, bool) else elements(value, f"trace setting {quoted(name)}")
    return [str(item) for item in values]
