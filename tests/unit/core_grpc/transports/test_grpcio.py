"""The grpc.aio transport over a socket, with handlers that no model could be."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2 as pb

from core_grpc.rpc.methods import RpcMethod, method_table
from core_grpc.settings import LimitsSettings, NodeSettings
from core_grpc.transports.grpcio import GrpcioServer

PATH = "/test.Service/Method"


async def test_a_request_without_a_deadline_ends_at_the_limit() -> None:
    was_ended = asyncio.Event()

    async def handler(_request: pb.HealthCheckRequest, _context: object) -> pb.HealthCheckResponse:
        try:
            await asyncio.Event().wait()
        finally:
            was_ended.set()
        raise AssertionError

    method = RpcMethod(
        path=PATH,
        request_type=pb.HealthCheckRequest,
        response_type=pb.HealthCheckResponse,
        streams_requests=False,
        streams_responses=False,
        handler=handler,
    )
    server = GrpcioServer(method_table([method]), replace(NodeSettings(), limits=LimitsSettings(max_request_s=0.05)))
    port = server.listen("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(10), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(PATH, request_serializer=pb.HealthCheckRequest.SerializeToString)(pb.HealthCheckRequest())
            await was_ended.wait()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        await server.stop(0)
