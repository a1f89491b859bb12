"""The transports alone: ModelInfer answered by a constant-time echo, without codec, checks, batcher or instance thread.

``app`` is for an Envoy that hosts Python; ``python -m bench.echo PORT`` is the same method table on grpc.aio.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.methods import RpcMethod, method_table
from core_grpc.settings import NodeSettings
from core_grpc.transports.asgi_grpc import GrpcAsgiApp, Scope, Send
from core_grpc.transports.caller_watch import Receive
from core_grpc.transports.grpcio import GrpcioServer
from protos.inference.grpc_service_pb2 import ModelInferRequest, ModelInferResponse


async def _echo(request: ModelInferRequest, _context: RpcContext) -> ModelInferResponse:
    response = ModelInferResponse(model_name=request.model_name)
    response.raw_output_contents.extend(request.raw_input_contents)
    return response


METHODS = method_table(
    [
        RpcMethod(
            path="/inference.GRPCInferenceService/ModelInfer",
            request_type=ModelInferRequest,
            response_type=ModelInferResponse,
            streams_requests=False,
            streams_responses=False,
            handler=_echo,
        )
    ]
)
_CALLS = GrpcAsgiApp(METHODS, 64 << 20, 300.0)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "http":
        await _CALLS(scope, receive, send)
        return
    for _ in ("startup", "shutdown"):
        message: Any = await receive()
        await send({"type": f"{message['type']}.complete"})


async def _serve(port: int) -> None:
    server = GrpcioServer(METHODS, NodeSettings())
    server.listen(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
