"""A caller may leave at any time and hurts nobody: cancelled, disconnected, out of time; the others get their own rows."""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc
import httpx
import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from tests.support.stack import Stack

METHOD = "/inference.GRPCInferenceService/ModelInfer"
SLOW_S = 0.3
"""What one execution of the model `slow` takes; it has one instance and batches up to 8 rows."""


def request(value: float, model: str = "slow") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, inputs=[{"name": "X", "datatype": "FP32", "shape": [1, 1]}])
    message.raw_input_contents.append(np.float32(value).tobytes())
    return message


def value_of(response: pb.ModelInferResponse) -> float:
    return float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])


def unary(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[pb.ModelInferRequest, pb.ModelInferResponse]:
    return channel.unary_unary(
        METHOD, request_serializer=pb.ModelInferRequest.SerializeToString, response_deserializer=pb.ModelInferResponse.FromString
    )


@pytest.mark.parametrize("door", ["node", "edge"])
async def test_cancelling_some_of_a_batch_leaves_the_others_their_rows(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    async with grpc.aio.insecure_channel(target) as channel:
        infer = unary(channel)
        for round_number in range(4):
            first = infer(request(-1.0), timeout=10)
            await asyncio.sleep(SLOW_S / 4)
            # These wait while the first executes, so they share the next batch; two leave before it, two while it runs.
            calls = [infer(request(float(i)), timeout=10) for i in range(6)]
            await asyncio.sleep(SLOW_S / 4)
            calls[0].cancel()
            calls[1].cancel()
            await asyncio.sleep(SLOW_S)
            calls[2].cancel()
            calls[3].cancel()
            assert value_of(await first) == -1.0
            assert [value_of(await call) for call in calls[4:]] == [4.0, 5.0], round_number
            for call in calls[:4]:
                with contextlib.suppress(asyncio.CancelledError):
                    await call


async def test_a_deadline_that_passes_in_the_queue_costs_nobody_else(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.addresses.node_grpc) as channel:
        infer = unary(channel)
        running = infer(request(1.0, "slow_unbatched"), timeout=10)
        await asyncio.sleep(SLOW_S / 4)
        late = [infer(request(9.0, "slow_unbatched"), timeout=SLOW_S / 4) for _ in range(10)]
        waiting = infer(request(2.0, "slow_unbatched"), timeout=10)
        for call in late:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        began = time.monotonic()
        assert value_of(await running) == 1.0
        assert value_of(await waiting) == 2.0
        # Ten expired requests of 0.3 s each did not run before it.
        assert time.monotonic() - began < 8 * SLOW_S


async def test_a_deadline_over_rest_is_504(stack: Stack) -> None:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    async with httpx.AsyncClient(base_url=stack.addresses.edge_url) as client:
        reply = await client.post("/v2/models/slow_unbatched/infer", json=body, headers={"grpc-timeout": "50m"})
        assert (reply.status_code, set(reply.json())) == (504, {"error"})
        reply = await client.post("/v1/models/slow_unbatched:predict", json={"inputs": [[1]]}, headers={"grpc-timeout": "50m"})
        assert (reply.status_code, reply.json()["code"]) == (504, 4)


@pytest.mark.parametrize("door", ["node", "edge"])
async def test_connections_closed_in_mid_request_free_their_work(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    async with grpc.aio.insecure_channel(target) as channel:
        infer = unary(channel)
        blocking = infer(request(0.0, "slow_unbatched"), timeout=10)
        await asyncio.sleep(SLOW_S / 4)
        for _ in range(20):
            doomed = grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
            call = unary(doomed)(request(7.0, "slow_unbatched"))
            await call.wait_for_connection()
            await doomed.close()
        began = time.monotonic()
        assert value_of(await blocking) == 0.0
        assert value_of(await infer(request(3.0, "slow_unbatched"), timeout=10)) == 3.0
        # Twenty abandoned requests would have taken six seconds.
        assert time.monotonic() - began < 10 * SLOW_S


async def test_rest_callers_who_hang_up_free_their_work(stack: Stack) -> None:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    url = f"{stack.addresses.edge_url}/v2/models/slow_unbatched/infer"

    async def hang_up() -> None:
        async with httpx.AsyncClient() as client:
            with contextlib.suppress(httpx.TimeoutException):
                await client.post(url, json=body, timeout=0.15)

    await asyncio.gather(*(hang_up() for _ in range(20)))
    began = time.monotonic()
    async with httpx.AsyncClient() as client:
        assert (await client.post(url, json=body, timeout=20)).status_code == 200
    assert time.monotonic() - began < 8 * SLOW_S
