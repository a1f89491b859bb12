"""RPCs that fail as they are told: the request's text names an error class, and both kinds of method raise it.

``app`` is for an Envoy that hosts Python; ``python -m tests.support.failing_app PORT`` is the same method table on grpc.aio.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from grpc_health.v1 import health_pb2

from core_grpc import errors
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.interceptors import guarded
from core_grpc.rpc.methods import RpcMethod, method_table
from core_grpc.settings import NodeSettings
from core_grpc.transports.asgi_grpc import GrpcAsgiApp, Scope, Send
from core_grpc.transports.caller_watch import Receive
from core_grpc.transports.grpcio import GrpcioServer

UNARY, STREAM = "/test.Failing/Unary", "/test.Failing/Stream"
SECRET = "secret-42 /srv/models/x.onnx"
"""What an unexpected exception says; no caller may see it."""


def _fail(name: str) -> None:
    if name == "unexpected":
        raise ValueError(SECRET)
    if name != "none":
        raise getattr(errors, name)(f"{name} said so: 100 % Größe\nsecond line")


async def _unary(request: Any, context: RpcContext) -> Any:
    context.set_header("x-seen-by", "unary")
    _fail(request.service)
    return health_pb2.HealthCheckResponse(status="SERVING")


async def _stream(request: Any, context: RpcContext) -> AsyncIterator[Any]:
    context.set_header("x-seen-by", "stream")
    yield health_pb2.HealthCheckResponse(status="SERVING")
    _fail(request.service)
    yield health_pb2.HealthCheckResponse(status="NOT_SERVING")


def _method(path: str, handler: Any, *, streams_responses: bool) -> RpcMethod:
    return guarded(
        RpcMethod(
            path=path,
            request_type=health_pb2.HealthCheckRequest,
            response_type=health_pb2.HealthCheckResponse,
            streams_requests=False,
            streams_responses=streams_responses,
            handler=handler,
        )
    )


METHODS = method_table([_method(UNARY, _unary, streams_responses=False), _method(STREAM, _stream, streams_responses=True)])
_CALLS = GrpcAsgiApp(METHODS, 64 << 20, 300.0)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "http":
        await _CALLS(scope, receive, send)
        return
    for _ in ("startup", "shutdown"):
        message = await receive()
        await send({"type": f"{message['type']}.complete"})


async def _serve(port: int) -> None:
    server = GrpcioServer(METHODS, NodeSettings())
    server.listen(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
