"""gRPC over ASGI, against a fake host: what no server can be made to do in a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
from grpc_health.v1 import health_pb2 as pb

from core_grpc.rpc.framing import frame
from core_grpc.rpc.methods import RpcMethod, StreamHandler, UnaryHandler, method_table
from core_grpc.transports.asgi_grpc import GrpcAsgiApp

PATH = "/test.Service/Method"


class FakeHost:
    """One call: its body in pieces, and what came back."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        for piece in pieces:
            self.pieces.put_nowait({"type": "http.request", "body": piece, "more_body": True})
        self.sent: list[MutableMapping[str, Any]] = []

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    async def call(self, app: GrpcAsgiApp) -> dict[bytes, bytes]:
        """Headers and trailers of the answer."""
        scope = {"type": "http", "path": PATH, "headers": [(b"content-type", b"application/grpc")]}
        async with asyncio.timeout(5):
            await app(scope, self.pieces.get, self.send)
        return dict(pair for message in self.sent for pair in message.get("headers", ()))


def app_of(handler: UnaryHandler | StreamHandler, *, streams_responses: bool) -> GrpcAsgiApp:
    method = RpcMethod(
        path=PATH,
        request_type=pb.HealthCheckRequest,
        response_type=pb.HealthCheckResponse,
        streams_requests=False,
        streams_responses=streams_responses,
        handler=handler,
    )
    return GrpcAsgiApp(method_table([method]), 1 << 20, 60.0)


async def test_a_second_message_is_refused_when_it_comes_and_not_kept() -> None:
    async def handler(_request: pb.HealthCheckRequest, _context: object) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        yield pb.HealthCheckResponse()

    message = frame(pb.HealthCheckRequest(service="s").SerializeToString())
    # The body goes on: whoever waits for its end keeps whatever comes.
    headers = await FakeHost(message, message).call(app_of(handler, streams_responses=True))
    assert headers[b"grpc-status"] == b"3"
    assert headers[b"grpc-message"] == b"the request has more than one message"


async def test_a_call_that_breaks_is_watched_no_longer() -> None:
    async def handler(_request: pb.HealthCheckRequest, _context: object) -> None:
        return None

    host = FakeHost()
    host.pieces.put_nowait({"type": "http.request", "body": frame(b""), "more_body": False})
    app = app_of(handler, streams_responses=False)
    with pytest.raises(AttributeError):
        await host.call(app)
    assert app.active_calls == 0
    assert len(app._watch) == 0
