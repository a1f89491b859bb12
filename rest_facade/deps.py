"""What routes ask for, named once as ``Annotated`` aliases."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from rest_facade.core_client import CoreClient, Metadata
from rest_facade.errors import FacadeError, invalid_argument
from rest_facade.schemas import PredictBody, predict_body_from_json
from rest_facade.settings import FacadeSettings

FORWARDED_HEADERS = ("x-request-id", "authorization", "x-api-key", "traceparent", "tracestate")
"""The caller's identity and trace, handed on to the core."""
EDGE_HEADERS = ("x-tensorgate-caller", "x-tensorgate-rights", "x-tensorgate-door")
"""Who the edge says it is: believed on the private Unix socket only."""


def _settings(request: Request) -> FacadeSettings:
    settings: FacadeSettings = request.app.state.settings
    return settings


def _core(request: Request) -> CoreClient:
    core: CoreClient = request.app.state.core
    return core


SettingsDep = Annotated[FacadeSettings, Depends(_settings)]
CoreDep = Annotated[CoreClient, Depends(_core)]


def _metadata(request: Request, settings: SettingsDep) -> Metadata:
    found = []
    for name in (*FORWARDED_HEADERS, *(EDGE_HEADERS if settings.unix_socket else ())):
        for value in request.headers.getlist(name):
            # gRPC metadata is ASCII; a client library that is given anything else raises instead of answering.
            if not (value.isascii() and value.isprintable()):
                raise invalid_argument(f"header {name}: wanted printable ASCII")
            found.append((name, value))
    return found


MetadataDep = Annotated[Metadata, Depends(_metadata)]


async def _predict_body(request: Request, settings: SettingsDep) -> PredictBody:
    """The body is read as JSON whatever its content type says: ``curl -d`` calls it a form, and some clients call it nothing."""
    if encoding := request.headers.get("content-encoding", "").strip().lower().removeprefix("identity"):
        raise FacadeError(12, f"Content-Encoding '{encoding[:40]}' is not offered: send the body as it is")
    limit_bytes = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    too_large = FacadeError(8, f"facade.max_body_bytes: the body is larger than {limit_bytes} bytes", http_status=413)
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise too_large
    return predict_body_from_json(bytes(body))


PredictBodyDep = Annotated[PredictBody, Depends(_predict_body)]
