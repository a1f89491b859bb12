"""Sequences on the event loop: callers and streams that leave, time that passes by a clock of the test's own, bounds, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from core_grpc.errors import BackendFailed, Cancelled, DeadlineExpired, InvalidArgument, ModelNotReady, QueueFull
from core_grpc.scheduler.batch import parts_of
from core_grpc.scheduler.dispatcher import BatchResult, Execution
from core_grpc.scheduler.grants import ComputeGrants, GateOrder
from core_grpc.scheduler.live_sequences import SequenceLimits, Strategy
from core_grpc.scheduler.sequence_dispatcher import SequenceDispatcher, SequenceMember
from core_grpc.scheduler.sequences import SequenceCall
from core_grpc.types import CallerStream, InferRequest
from tests.unit.core_grpc.scheduler.held_engine import until


class FakeClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class HeldInstance:
    """Answers each request with its value once it is let go; 99 fails."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        if not is_held:
            self.go.set()

    async def execute(self, batch: Sequence[SequenceMember]) -> BatchResult:
        values = np.concatenate([member.inputs["X"] for member in batch])
        self.batches.append(values[:, 0].tolist())
        await self.go.wait()
        if 99 in values:
            raise BackendFailed("99 is not served")
        return BatchResult(parts_of({"Y": values}, [1] * len(batch)), 0.5)


class Calls:
    """Requests of one test."""

    def __init__(self, dispatcher: SequenceDispatcher, clock: FakeClock) -> None:
        self.dispatcher = dispatcher
        self.clock = clock

    async def __call__(
        self, value: int, key: int | str, flags: str = "", *, patience: float | None = None, stream: CallerStream | None = None
    ) -> Execution:
        call = SequenceCall(key, "s" in flags, "e" in flags)
        deadline = None if patience is None else self.clock.now + patience
        request = InferRequest("m", "", {}, stream=stream)
        return await self.dispatcher.infer(call, {"X": np.array([[value]])}, 8, None, deadline, request)

    async def sent(self, *arguments: object, **named: object) -> asyncio.Task[Execution]:
        """A request that has been admitted."""
        task = asyncio.create_task(self(*arguments, **named))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return task


@asynccontextmanager
async def dispatching(*instances: HeldInstance, **limits: object) -> AsyncIterator[Calls]:
    values = {"slots": 4, "max_batch_size": 4, "enough": 4, "max_queue_delay_s": 0.0, "max_idle_s": 10.0} | limits
    values = {"max_queue_requests": 100, "max_queue_bytes": 10_000} | values
    clock = FakeClock()
    made = SequenceLimits(model="m", strategy=Strategy.OLDEST, instances=len(instances), **values)  # type: ignore[arg-type]
    dispatcher = SequenceDispatcher(made, [instance.execute for instance in instances], clock=clock)
    try:
        yield Calls(dispatcher, clock)
    finally:
        for instance in instances:
            instance.go.set()
        await dispatcher.close()


async def test_what_waits_while_an_instance_is_busy_shares_its_next_batch() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance) as call:
        tasks = [await call.sent(1, "a", "s")]
        await until(lambda: bool(instance.batches))
        tasks += [await call.sent(value, key, flags) for value, key, flags in ((2, "a", ""), (3, "b", "s"), (4, "c", "s"), (5, "a", ""))]
        instance.go.set()
        executions = await asyncio.gather(*tasks)
        assert instance.batches == [[1], [2, 3, 4], [5]]
        assert [int(execution.outputs["Y"][0, 0]) for execution in executions] == [1, 2, 3, 4, 5]
        assert [execution.batch_rows for execution in executions] == [1, 3, 3, 3, 1]


async def test_a_sequence_stays_on_its_instance_while_another_is_free() -> None:
    first, second = HeldInstance(is_held=True), HeldInstance()
    async with dispatching(first, second) as call:
        one = await call.sent(1, "a", "s")
        await until(lambda: first.batches == [[1]])
        two = await call.sent(2, "a")
        assert (await call(3, "b", "s")).outputs["Y"].tolist() == [[3]]
        assert second.batches == [[3]]
        first.go.set()
        await asyncio.gather(one, two)
        assert first.batches == [[1], [2]]


async def test_a_cancelled_request_leaves_at_once_and_what_comes_behind_it_never_runs() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance) as call:
        first = await call.sent(1, "a", "s")
        await until(lambda: bool(instance.batches))
        gone, behind, again = await call.sent(2, "a"), await call.sent(3, "a"), await call.sent(4, "a", "se")
        assert call.dispatcher.pending == 3
        gone.cancel()
        with pytest.raises(Cancelled, match="an earlier request of it was not run"):
            await behind
        assert call.dispatcher.pending == 1
        instance.go.set()
        await asyncio.gather(first, again)
        assert instance.batches == [[1], [4]]
        assert call.dispatcher.sequences == 0


async def test_a_cancelled_start_frees_the_place_in_the_line_for_a_slot() -> None:
    async with dispatching(HeldInstance(), slots=1) as call:
        await call(1, "a", "s")
        waiting, next_one = await call.sent(2, "b", "s"), await call.sent(3, "c", "s")
        waiting.cancel()
        await asyncio.sleep(0)
        await call(4, "a", "e")
        assert (await next_one).outputs["Y"].tolist() == [[3]]
        assert call.dispatcher.sequences == 1


async def test_a_request_whose_caller_left_while_it_ran_is_part_of_its_sequence() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance) as call:
        first = await call.sent(1, "a", "s")
        await until(lambda: bool(instance.batches))
        second = await call.sent(2, "a")
        first.cancel()
        instance.go.set()
        assert (await second).outputs["Y"].tolist() == [[2]]


async def test_a_request_that_failed_after_its_caller_left_ends_its_sequence() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance) as call:
        first = await call.sent(99, "a", "s")
        await until(lambda: bool(instance.batches))
        second = await call.sent(2, "a")
        first.cancel()
        instance.go.set()
        with pytest.raises(Cancelled):
            await second
        assert instance.batches == [[99]]


async def test_a_request_out_of_time_ends_its_sequence() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance) as call:
        first = await call.sent(1, "a", "s")
        await until(lambda: bool(instance.batches))
        late, behind, other = await call.sent(2, "a", patience=1.0), await call.sent(3, "a"), await call.sent(4, "b", "s")
        call.clock.now += 2.0
        instance.go.set()
        with pytest.raises(DeadlineExpired):
            await late
        with pytest.raises(Cancelled):
            await behind
        await asyncio.gather(first, other)
        assert instance.batches == [[1], [4]]
        with pytest.raises(InvalidArgument, match="must specify the START flag"):
            await call(5, "a")
        with pytest.raises(DeadlineExpired):
            await call(5, "b", patience=0.0)


async def test_silence_frees_a_slot_for_who_waits() -> None:
    async with dispatching(HeldInstance(), slots=1, max_idle_s=0.02) as call:
        await call(1, "a", "s")
        waiting = await call.sent(2, "b", "s")
        assert not waiting.done()
        call.clock.now += 0.021
        # The timer runs by the loop's clock, and looks at the test's.
        assert (await waiting).outputs["Y"].tolist() == [[2]]
        with pytest.raises(InvalidArgument, match=r"must specify the START flag .* was silent for more than 0.02 s"):
            await call(3, "a")


async def test_the_end_of_a_stream_ends_what_it_began_and_nothing_else() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance, slots=2) as call:
        with CallerStream() as stream:
            mine = await call.sent(1, "mine", "s", stream=stream)
            await until(lambda: bool(instance.batches))
            cut = await call.sent(2, "mine", stream=stream)
            others = await call.sent(3, "others", "s"), await call.sent(4, "others", stream=stream)
            waiting = await call.sent(5, "third", "s")
        with pytest.raises(Cancelled, match="its stream ended"):
            await cut
        instance.go.set()
        await asyncio.gather(mine, *others, waiting)
        assert instance.batches == [[1], [3, 5], [4]]
        assert call.dispatcher.sequences == 2
        with pytest.raises(InvalidArgument):
            await call(6, "mine")


async def test_too_much_is_refused_with_a_hint_and_the_sequence_goes_on() -> None:
    instance = HeldInstance()
    async with dispatching(instance, max_queue_requests=2) as call:
        await call(1, "a", "s")
        instance.go.clear()
        running = await call.sent(2, "a")
        await until(lambda: len(instance.batches) == 2)
        waiting = [await call.sent(3, "a"), await call.sent(4, "b", "s")]
        with pytest.raises(QueueFull, match="too many requests are waiting: 2 and 1 more exceed the limit of 2") as caught:
            await call(5, "a")
        assert caught.value.retry_after_s == 1.0
        instance.go.set()
        await asyncio.gather(running, *waiting)
        assert (await call(5, "a", "e")).outputs["Y"].tolist() == [[5]]


async def test_only_the_guilty_one_of_a_batch_fails() -> None:
    instance = HeldInstance(is_held=True)
    async with dispatching(instance) as call:
        first = await call.sent(1, "a", "s")
        await until(lambda: bool(instance.batches))
        batch = [await call.sent(value, f"{value}", "s") for value in (2, 99, 3)]
        instance.go.set()
        await first
        got = await asyncio.gather(*batch, return_exceptions=True)
        assert [isinstance(item, BackendFailed) for item in got] == [False, True, False]
        assert instance.batches == [[1], [2, 99, 3], [2], [99], [3]]
        # It was told: its sequence goes on.
        assert (await call(4, "99")).outputs["Y"].tolist() == [[4]]


async def test_an_engine_with_states_of_its_own_does_not_run_a_request_twice() -> None:
    instance = HeldInstance(is_held=True)
    clock = FakeClock()
    limits = SequenceLimits("m", Strategy.OLDEST, 1, 4, 4, 4, 0.0, 10.0, 100, 10_000)
    dispatcher = SequenceDispatcher(limits, [instance.execute], clock=clock, runs_again=False)
    call = Calls(dispatcher, clock)
    first = await call.sent(1, "a", "s")
    await until(lambda: bool(instance.batches))
    batch = [await call.sent(value, f"{value}", "s") for value in (2, 99)]
    instance.go.set()
    await first
    assert all(isinstance(item, BackendFailed) for item in await asyncio.gather(*batch, return_exceptions=True))
    assert instance.batches == [[1], [2, 99]]
    await dispatcher.close()


async def test_draining_and_closing() -> None:
    instance = HeldInstance()
    async with dispatching(instance, slots=1) as call:
        await call(1, "silent", "s")
        waiting = await call.sent(2, "next", "s")
        await call.dispatcher.drain()
        assert waiting.done()
        with pytest.raises(ModelNotReady):
            await call(3, "silent")
        instance.go.clear()
        running = await call.sent(4, "last", "s")
        await until(lambda: instance.batches[-1] == [4])
        cut = await call.sent(5, "last")
        closing = asyncio.create_task(call.dispatcher.close())
        with pytest.raises(ModelNotReady):
            await cut
        instance.go.set()
        assert (await running).outputs["Y"].tolist() == [[4]]
        await closing
        with pytest.raises(ModelNotReady):
            await call(6, "new", "s")


async def test_instances_ask_before_they_execute() -> None:
    """One slot on the device for two instances: one after the other, whatever waits."""
    first, second = HeldInstance(is_held=True), HeldInstance(is_held=True)
    clock = FakeClock()
    grants = ComputeGrants(lambda _device: 1, clock=clock)
    limits = SequenceLimits("m", Strategy.OLDEST, 2, 4, 4, 4, 0.0, 10.0, 100, 10_000)
    gates = grants.gates([GateOrder("cpu"), GateOrder("cpu")])
    dispatcher = SequenceDispatcher(limits, [first.execute, second.execute], clock=clock, gates=gates)
    call = Calls(dispatcher, clock)
    tasks = [await call.sent(1, "a", "s"), await call.sent(2, "b", "s")]
    await until(lambda: first.batches + second.batches != [])
    running, other = (first, second) if first.batches else (second, first)
    assert other.batches == []
    other.go.set()
    running.go.set()
    await asyncio.gather(*tasks)
    assert sorted(first.batches + second.batches) == [[1], [2]]
    await dispatcher.close()
