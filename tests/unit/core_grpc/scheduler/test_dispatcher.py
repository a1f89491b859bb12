"""The dispatcher with engines that the tests hold in their hands: when a batch ends is decided here, not by a clock."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from core_grpc.errors import BackendFailed, DeadlineExpired, GatewayError, InvalidArgument, ModelNotReady, QueueFull
from core_grpc.scheduler.batch import parts_of
from core_grpc.scheduler.batch_buffers import BatchBuffers
from core_grpc.scheduler.dispatcher import BatchResult, Dispatcher, Execution, Member
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from tests.unit.core_grpc.scheduler.held_engine import HeldEngine, until


@asynccontextmanager
async def dispatching(*engines: HeldEngine, batch: int = 8, delay_s: float = 0.0, rows: int = 100) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(BatchingLimits(batch, delay_s, rows, 1 << 20), [engine.execute for engine in engines])
    try:
        yield dispatcher
    finally:
        for engine in engines:
            engine.go.set()
        await dispatcher.close()


def ask(dispatcher: Dispatcher, *values: int, deadline_s: float | None = None, group: str = "") -> asyncio.Task[Execution]:
    array = np.array(values).reshape(-1, 1)
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    return asyncio.create_task(dispatcher.infer({"X": array}, len(values), array.nbytes, group, deadline))


def answer(task: asyncio.Task[Execution]) -> list[int]:
    values: list[int] = task.result().outputs["Y"][:, 0].tolist()
    return values


async def test_requests_of_one_turn_share_a_batch_and_get_their_own_rows() -> None:
    engine = HeldEngine(is_held=False)
    async with dispatching(engine) as dispatcher:
        tasks = [ask(dispatcher, 1), ask(dispatcher, 2, 3), ask(dispatcher, 4)]
        await asyncio.wait(tasks)
        assert [answer(task) for task in tasks] == [[2], [4, 6], [8]]
        assert engine.batches == [[1, 2, 3, 4]]
        assert {task.result().batch_rows for task in tasks} == {4}
        assert {task.result().compute_s for task in tasks} == {0.25}


async def test_groups_do_not_mix() -> None:
    engine = HeldEngine(is_held=False)
    async with dispatching(engine) as dispatcher:
        tasks = [ask(dispatcher, i, group="ab"[i % 2]) for i in range(6)]
        await asyncio.wait(tasks)
        assert [answer(task) for task in tasks] == [[2 * i] for i in range(6)]
        assert sorted(engine.batches) == [[0, 2, 4], [1, 3, 5]]


async def test_each_instance_takes_as_it_becomes_free() -> None:
    engines = HeldEngine(), HeldEngine()
    async with dispatching(*engines, batch=1) as dispatcher:
        tasks = [ask(dispatcher, i) for i in range(4)]
        await until(lambda: all(engine.started.is_set() for engine in engines))
        assert dispatcher.pending == 2
        for engine in engines:
            engine.go.set()
        await asyncio.wait(tasks)
        assert sorted(value for engine in engines for batch in engine.batches for value in batch) == [0, 1, 2, 3]


async def test_queue_limit_counts_exactly() -> None:
    """BAT-06: one runs, two wait, three are refused; also when all arrive in one turn of the loop."""
    engine = HeldEngine()
    async with dispatching(engine, batch=0, rows=2) as dispatcher:
        tasks = [ask(dispatcher, i) for i in range(6)]
        await until(lambda: sum(task.done() for task in tasks) == 3)
        assert all(isinstance(task.exception(), QueueFull) for task in tasks[3:])
        assert dispatcher.pending == 2
        engine.go.set()
        await asyncio.wait(tasks)
        assert [answer(task) for task in tasks[:3]] == [[0], [2], [4]]
        assert (await ask(dispatcher, 7)).outputs["Y"].tolist() == [[14]]


async def test_cancelled_entries_release_their_slot_just_once() -> None:
    """BAT-09."""
    order = random.Random(1)
    engines = HeldEngine(), HeldEngine()
    async with dispatching(*engines, batch=0, rows=10) as dispatcher:
        for _ in range(20):
            for engine in engines:
                engine.go.clear()
            tasks = [ask(dispatcher, i) for i in range(12)]
            await until(lambda: dispatcher.pending == 10)
            for task in order.sample(tasks, 10):
                task.cancel()
            await asyncio.sleep(0)
            for engine in engines:
                engine.go.set()
            await asyncio.wait(tasks)
            await dispatcher.drain()
        for engine in engines:
            engine.go.clear()
        tasks = [ask(dispatcher, i) for i in range(13)]
        await until(lambda: any(task.done() for task in tasks))
        assert [isinstance(task.exception(), QueueFull) for task in tasks if task.done()] == [True]
        assert dispatcher.pending == 10


async def test_members_cancelled_while_the_batch_runs_hurt_nobody() -> None:
    """STR-05."""
    engine = HeldEngine()
    async with dispatching(engine) as dispatcher:
        for _ in range(20):
            engine.go.clear()
            engine.started.clear()
            tasks = [ask(dispatcher, i) for i in range(4)]
            await engine.started.wait()
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.sleep(0)
            engine.go.set()
            await asyncio.wait(tasks)
            assert [task.cancelled() for task in tasks] == [True, False, True, False]
            assert answer(tasks[1]) == [2]
            assert answer(tasks[3]) == [6]
        after = [ask(dispatcher, i) for i in range(20)]
        await asyncio.wait(after)
        assert [answer(task) for task in after] == [[2 * i] for i in range(20)]
        assert dispatcher.pending == 0


@pytest.mark.parametrize("failure", [BackendFailed("99 is not served"), InvalidArgument("99 is not an index"), ValueError("secret /etc/x")])
async def test_only_the_guilty_member_fails(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-04; what a backend did not translate is logged, not told."""
    caplog.set_level(logging.CRITICAL)
    engine = HeldEngine(is_held=False)
    engine.failure = failure
    async with dispatching(engine) as dispatcher:
        tasks = [ask(dispatcher, value) for value in (0, 1, 99, 3)]
        await asyncio.wait(tasks)
        assert [answer(tasks[i]) for i in (0, 1, 3)] == [[0], [2], [6]]
        error = tasks[2].exception()
        assert isinstance(error, type(failure) if isinstance(failure, GatewayError) else BackendFailed)
        assert "secret" not in str(error)
        assert engine.batches == [[0, 1, 99, 3], [0], [1], [99], [3]]


async def test_output_without_the_batch_dimension_fails_all_members() -> None:
    """BAT-11."""

    async def first_row_only(batch: Sequence[Member]) -> BatchResult:
        outputs = {"Y": BatchBuffers().stack([member.inputs for member in batch])["X"][:1]}
        return BatchResult(parts_of(outputs, [member.rows for member in batch]), 0.0)

    dispatcher = Dispatcher(BatchingLimits(8, 0.0, 100, 1 << 20), [first_row_only])
    tasks = [ask(dispatcher, i) for i in range(3)]
    await asyncio.wait(tasks)
    for task in tasks:
        assert isinstance(task.exception(), BackendFailed)
        assert "output 'Y'" in str(task.exception())
    await dispatcher.close()


async def test_deadline_that_passes_in_the_queue_never_reaches_the_engine() -> None:
    """BAT-08: answered while the batch before it still runs."""
    engine = HeldEngine()
    async with dispatching(engine, batch=1) as dispatcher:
        running = ask(dispatcher, 1)
        await engine.started.wait()
        began = time.monotonic()
        late = [ask(dispatcher, 2, deadline_s=0.05), ask(dispatcher, 3, deadline_s=0.02), ask(dispatcher, 4, deadline_s=60)]
        await asyncio.wait(late[:2])
        assert 0.04 < time.monotonic() - began < 5
        assert all(isinstance(task.exception(), DeadlineExpired) for task in late[:2])
        assert not running.done()
        engine.go.set()
        await asyncio.wait([running, late[2]])
        assert engine.batches == [[1], [4]]


async def test_deadline_that_has_passed_is_refused_at_once() -> None:
    engine = HeldEngine()
    async with dispatching(engine) as dispatcher:
        with pytest.raises(DeadlineExpired):
            await ask(dispatcher, 1, deadline_s=-1)
        assert engine.batches == []


async def test_queue_delay_lets_a_batch_form_and_a_full_one_does_not_wait() -> None:
    engine = HeldEngine(is_held=False)
    async with dispatching(engine, batch=2, delay_s=0.05) as dispatcher:
        began = time.monotonic()
        lonely = await ask(dispatcher, 1)
        assert lonely.queue_s >= 0.045
        assert time.monotonic() - began < 5
        first = ask(dispatcher, 2)
        await asyncio.sleep(0)
        second = ask(dispatcher, 3)
        await asyncio.wait([first, second])
        assert engine.batches == [[1], [2, 3]]
        assert first.result().queue_s < lonely.queue_s


async def test_drain_waits_for_pending_and_executing_work() -> None:
    engine = HeldEngine()
    async with dispatching(engine, batch=1) as dispatcher:
        tasks = [ask(dispatcher, 1), ask(dispatcher, 2)]
        await engine.started.wait()
        drain = asyncio.create_task(dispatcher.drain())
        await asyncio.sleep(0.01)
        assert not drain.done()
        engine.go.set()
        await drain
        assert all(task.done() for task in tasks)


async def test_close_fails_what_is_pending_and_finishes_what_is_executing() -> None:
    engine = HeldEngine()
    async with dispatching(engine, batch=1) as dispatcher:
        running, waiting = ask(dispatcher, 1), ask(dispatcher, 2)
        await engine.started.wait()
        close = asyncio.create_task(dispatcher.close())
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), ModelNotReady)
        engine.go.set()
        await close
        assert answer(running) == [2]
        with pytest.raises(ModelNotReady):
            await ask(dispatcher, 3)
        await dispatcher.close()
