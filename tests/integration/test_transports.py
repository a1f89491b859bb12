"""What both transports promise beside answers: one core in a process, clients that ping, limits, health that is watched."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.inference import grpc_service_pb2 as oip
from tests.doors.test_vectors import GOOD, assert_answers
from tests.support.doors import DOORS
from tests.support.stack import Stack

PINGS = [
    ("grpc.keepalive_time_ms", 500),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
"""Twenty times as often as the usual advice (every 10 s, also without calls), so that seconds stand for minutes."""


def test_a_process_is_one_core(stack: Stack) -> None:
    """The models of the repository are loaded once: two listeners in front of the module would be two cores."""
    assert stack.program.output.count("serving: ") == 1
    assert stack.program.output.count("model id_fp32 version 1 is ready") == 1


@pytest.mark.parametrize("door", ["node", "edge"])
async def test_clients_may_ping_without_calls(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    async with grpc.aio.insecure_channel(target, options=PINGS) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
        ends = time.monotonic() + 6
        while time.monotonic() < ends:
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            await asyncio.sleep(0.25)
        await health.Check(health_pb2.HealthCheckRequest(), timeout=10)


async def test_health_answers_for_the_server_and_each_service_and_can_be_watched(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.addresses.node_grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService", "tensorgate.v1.InferenceService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nope"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watched = health.Watch(health_pb2.HealthCheckRequest(service="nope"))
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watched.cancel()


async def test_a_generic_client_can_be_built_from_reflection_inside_and_not_outside(stack: Stack) -> None:
    questions = [reflection_pb2.ServerReflectionRequest(list_services="")]
    async with grpc.aio.insecure_channel(stack.addresses.node_grpc) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = [item async for item in stub.ServerReflectionInfo(iter(questions))]
        names = {service.name for service in answer.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= names
    async with grpc.aio.insecure_channel(stack.addresses.edge_grpc) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            [item async for item in stub.ServerReflectionInfo(iter(questions))]


@pytest.mark.parametrize("door", ["node", "edge"])
async def test_a_message_above_the_limit_is_refused_and_the_next_is_answered(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    request = oip.ModelInferRequest(model_name="id_uint8", inputs=[{"name": "X", "datatype": "UINT8", "shape": [1, 65 << 20]}])
    request.raw_input_contents.append(bytes(65 << 20))
    async with grpc.aio.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=oip.ModelInferRequest.SerializeToString,
            response_deserializer=oip.ModelInferResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(request, timeout=30)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value.details()
    assert_answers(DOORS["grpc edge raw"](stack.addresses, GOOD), GOOD)
