"""The streams of ``tensorgate.v1`` over gRPC: order, failures, readers that are slow and readers that leave."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc.aio
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from protos.tensorgate.v1 import inference_pb2 as tg
from protos.tensorgate.v1 import inference_pb2_grpc as tg_grpc
from tests.support.python_models import made
from tests.support.stack import Stack
from tests.triton.messages import DOORS, counted, repeated, row, sent, target


@pytest.mark.parametrize("door", DOORS)
async def test_watch_sends_each_answer_when_it_is_made(triton_stack: Stack, door: str) -> None:
    began = time.monotonic()
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        call = tg_grpc.InferenceServiceStub(channel).Watch(tg.WatchRequest(request=repeated([4, 5, 6], 400, "w")), timeout=20)
        got = [(answer, time.monotonic() - began) async for answer in call]
    assert [list(answer.outcome.response.outputs[0].int_values) for answer, _ in got[:-1]] == [[4], [5], [6]]
    assert [answer.final for answer, _ in got] == [False, False, False, True]
    assert {answer.outcome.id for answer, _ in got} == {"w"}
    assert got[2][1] - got[0][1] > 0.2, "the first did not wait for the last, made 0.8 s later"


@pytest.mark.parametrize("door", DOORS)
async def test_a_slow_reader_holds_back_its_own_stream_only(triton_stack: Stack, example_repository: Path, door: str) -> None:
    name = f"slow-{triton_stack.transport}-{door}"
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = tg_grpc.InferenceServiceStub(channel)
        slow = stub.Watch(tg.WatchRequest(request=counted(1_000_000, size=100_000, request_id=name)))
        await anext(aiter(slow))
        await asyncio.sleep(1.0)
        quick = stub.Watch(tg.WatchRequest(request=counted(300, request_id=f"{name}-quick")), timeout=20)
        assert len([answer async for answer in quick]) == 301
        slow.cancel()
        # 400 KB each: what the windows of HTTP/2, two proxies and a few queues hold, and not what a second could make.
        assert await made(example_repository, name) < 150


@pytest.mark.parametrize("door", DOORS)
async def test_a_reader_that_leaves_frees_its_work(triton_stack: Stack, example_repository: Path, door: str) -> None:
    name = f"left-{triton_stack.transport}-{door}"
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        requests = [tg.ConverseRequest(request=counted(1_000_000, request_id=name))]
        call = tg_grpc.InferenceServiceStub(channel).Converse(sent(requests, asyncio.Event()))
        answers = aiter(call)
        for _ in range(5):
            await anext(answers)
        call.cancel()
        assert await made(example_repository, name) > 0


@pytest.mark.parametrize("door", DOORS)
async def test_converse(triton_stack: Stack, door: str) -> None:
    requests = [row("id_fp32", n, str(n)) for n in range(50)] + [row("nope", 1, "bad"), counted(3, request_id="many")]
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        call = tg_grpc.InferenceServiceStub(channel).Converse(sent([tg.ConverseRequest(request=item) for item in requests]), timeout=20)
        answers = [answer async for answer in call]
    ordered = [answer for answer in answers if answer.outcome.id != "many"]
    assert [answer.outcome.id for answer in ordered] == [*map(str, range(50)), "bad"]
    assert [answer.outcome.response.outputs[0].float_values[0] for answer in ordered[:-1]] == list(range(50))
    assert ordered[-1].outcome.code == 5
    assert all(answer.final for answer in ordered)
    assert [answer.final for answer in answers if answer.outcome.id == "many"] == [False, False, False, True]


@pytest.mark.parametrize("door", DOORS)
async def test_predict_many(triton_stack: Stack, door: str) -> None:
    requests = [row("id_fp32", 1, "a"), row("nope", 1, "b"), row("slow", 2, "c"), repeated([7, 8], request_id="d")]
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = tg_grpc.InferenceServiceStub(channel)
        answer = await stub.PredictMany(sent([tg.PredictManyRequest(request=item) for item in requests]), timeout=20)
        nothing = await stub.PredictMany(sent([]), timeout=20)
    assert [(item.id, item.code) for item in answer.outcomes] == [("a", 0), ("b", 5), ("c", 0), ("d", 0)]
    assert (answer.succeeded, answer.failed) == (3, 1)
    assert list(answer.outcomes[3].response.outputs[0].int_values) == [8], "the last answer of a decoupled model"
    assert nothing == tg.PredictManyResponse()


@pytest.mark.parametrize("door", DOORS)
async def test_a_caller_that_leaves_with_more_requests_than_fit_frees_its_work(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        statistics = pb_grpc.GRPCInferenceServiceStub(channel).ModelStatistics

        async def cancelled() -> int:
            answer = await statistics(pb.ModelStatisticsRequest(name="repeat_int32"))
            return int(answer.model_stats[0].response_stats["0"].cancel.count)

        before = await cancelled()
        waiting = tg.ConverseRequest(request=repeated([1], 60_000))
        # The one that is answered says that those before it are in work; those behind it find no room.
        requests = [*[waiting] * 63, tg.ConverseRequest(request=repeated([7])), *[waiting] * 40]
        call = tg_grpc.InferenceServiceStub(channel).Converse(sent(requests, asyncio.Event()))
        answers = aiter(call)
        assert [(await anext(answers)).final for _ in range(2)] == [False, True]
        call.cancel()
        for _ in range(100):
            if await cancelled() - before >= 63:
                break
            await asyncio.sleep(0.05)
        assert await cancelled() - before >= 63
