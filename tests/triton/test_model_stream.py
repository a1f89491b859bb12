"""``ModelStreamInfer`` over real servers: order, ends, failures, and readers that leave. Ids are those of the case list."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from tests.support.stack import Stack
from tests.triton.messages import DOORS, infer, number_of, repeat, sent, target


@pytest.mark.parametrize("door", DOORS)
async def test_str_02_half_close_with_answers_outstanding(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(sent([infer("slow", [[n]], str(n)) for n in range(5)]), timeout=20)
        answers = [answer async for answer in call]
        assert [(answer.infer_response.id, number_of(answer.infer_response)) for answer in answers] == [(str(n), n) for n in range(5)]
        assert all(answer.infer_response.parameters["triton_final_response"].bool_param for answer in answers)
        assert [answer async for answer in stub.ModelStreamInfer(sent([]), timeout=5)] == []


@pytest.mark.parametrize("door", DOORS)
async def test_failures_are_in_band_unless_asked_otherwise(triton_stack: Stack, door: str) -> None:
    requests = [infer("id_fp32", [[1]], "a"), infer("nope", [[1]], "b"), infer("id_fp32", [[2]], "c")]
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        answers = [answer async for answer in stub.ModelStreamInfer(sent(requests), timeout=20)]
        assert [answer.infer_response.id for answer in answers] == ["a", "b", "c"]
        assert [bool(answer.error_message) for answer in answers] == [False, True, False]
        assert answers[1].error_message == "Request for unknown model: 'nope' is not found"
        # Still open when the failure ends it: this client forgets the status where it was sending.
        call = stub.ModelStreamInfer(sent(requests[1:2], asyncio.Event()), timeout=20, metadata=[("triton_grpc_error", "true")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [answer async for answer in call]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("door", DOORS)
async def test_str_04_cancelling_a_stream_with_queued_work(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)

        async def executions() -> int:
            answer = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="slow_unbatched"))
            return int(answer.model_stats[0].execution_count)

        before = await executions()
        call = stub.ModelStreamInfer(sent([infer("slow_unbatched", [[n]], str(n)) for n in range(10)], asyncio.Event()))
        await asyncio.sleep(0.15)
        call.cancel()
        await asyncio.sleep(1.5)
        assert await executions() - before <= 2


@pytest.mark.parametrize("door", DOORS)
async def test_str_01_clients_vanish_in_the_middle_of_streams(triton_stack: Stack, door: str) -> None:
    async def vanish(number: int) -> None:
        async with grpc.aio.insecure_channel(target(triton_stack, door), options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            requests = [infer("slow", [[number]], str(n)) for n in range(20)]
            call = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(sent(requests, asyncio.Event()))
            await anext(aiter(call))

    await asyncio.gather(*map(vanish, range(16)))
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        began = time.monotonic()
        answer = await pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer("slow", [[7]], "after"), timeout=20)
        assert number_of(answer) == 7
        assert time.monotonic() - began < 3, "what the vanished had queued is gone"


@pytest.mark.parametrize("door", DOORS)
async def test_str_08_concurrent_streams_keep_their_ids(triton_stack: Stack, door: str) -> None:
    async def stream(number: int) -> None:
        async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
            wanted = [number * 1000.0 + n for n in range(200)]
            call = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(sent([infer("id_fp32", [[v]], str(v)) for v in wanted]))
            answers = [(answer.infer_response.id, number_of(answer.infer_response)) async for answer in call]
            assert answers == [(str(value), value) for value in wanted]

    async def unary(number: int) -> None:
        async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
            for n in range(50):
                answer = await pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer("id_fp32", [[number + n]], "u"))
                assert number_of(answer) == number + n

    await asyncio.gather(*map(stream, range(8)), *(unary(n * 10_000) for n in range(4)))


@pytest.mark.parametrize("door", DOORS)
async def test_decoupled_answers_interleave_with_others(triton_stack: Stack, door: str) -> None:
    requests = [repeat([1, 2, 3], 100, "many"), infer("id_fp32", [[5]], "one")]
    requests[0].parameters["triton_enable_empty_final_response"].bool_param = True
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        call = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(sent(requests), timeout=20)
        answers = [answer.infer_response async for answer in call]
        with pytest.raises(grpc.aio.AioRpcError, match="decoupled") as caught:
            await pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(repeat([1]))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert [answer.id for answer in answers if answer.id == "many"] == ["many"] * 4
    assert answers[-1].id == "many"
    assert not answers[-1].outputs
    assert [answer.parameters["triton_final_response"].bool_param for answer in answers if answer.id == "many"] == [False] * 3 + [True]
