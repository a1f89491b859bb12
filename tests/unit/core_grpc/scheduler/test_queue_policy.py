"""Priorities, time-outs and order: the policy as a function, and what the dispatcher does with it."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import numpy as np
import pytest

from core_grpc.errors import DeadlineExpired, InvalidArgument, QueueFull
from core_grpc.scheduler.answer_order import AnswerOrder
from core_grpc.scheduler.dispatcher import Dispatcher, Execution
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from core_grpc.scheduler.policy import QueuePolicies, QueuePolicy, Terms, TimeoutAction, queue_deadline
from tests.unit.core_grpc.scheduler.held_engine import HeldEngine, until

LEVELS = QueuePolicies(
    priority_levels=3,
    default_priority_level=2,
    default=QueuePolicy(timeout_s=4.0),
    by_level={3: QueuePolicy(timeout_s=1.0, timeout_action=TimeoutAction.DELAY, allow_timeout_override=False)},
)


@pytest.mark.parametrize(
    ("parameters", "deadline", "terms"),
    [
        ({}, None, Terms(1, 14.0, math.inf)),
        ({"priority": 0}, None, Terms(1, 14.0, math.inf)),
        ({"priority": 1}, 12.0, Terms(0, 12.0, math.inf)),
        ({"priority": 1, "timeout": 1_000_000}, 12.0, Terms(0, 11.0, math.inf)),
        ({"priority": 1, "timeout": 60_000_000}, None, Terms(0, 14.0, math.inf)),
        ({"priority": 3}, 12.0, Terms(2, 12.0, 11.0)),
        ({"priority": 3, "timeout": 1}, None, Terms(2, None, 11.0)),
    ],
)
def test_terms(parameters: dict[str, int], deadline: float | None, terms: Terms) -> None:
    assert LEVELS.terms(parameters, deadline, 10.0) == terms


def test_a_priority_that_the_model_does_not_have() -> None:
    with pytest.raises(InvalidArgument, match=r"parameter 'priority': wanted 1 .* to 3, or 0 for the default, got 4"):
        LEVELS.terms({"priority": 4}, None, 0.0)
    assert QueuePolicies().terms({"priority": 4}, None, 0.0) == Terms(0, None, math.inf), "no levels: there is nothing to choose from"


def test_the_parameter_timeout_of_a_plain_model() -> None:
    assert queue_deadline({"timeout": 500_000}, None, 10.0) == 10.5
    assert queue_deadline({"timeout": 500_000}, 10.25, 10.0) == 10.25
    assert queue_deadline({"timeout": 0}, 10.25, 10.0) == 10.25
    assert QueuePolicies().is_plain
    assert not QueuePolicies(default=QueuePolicy(allow_timeout_override=False)).is_plain


def ask(
    dispatcher: Dispatcher, value: int, level: int = 0, deadline: float | None = None, delay_at: float = math.inf
) -> asyncio.Task[Execution]:
    array = np.array([[value]])
    return asyncio.create_task(dispatcher.infer({"X": array}, 1, array.nbytes, "", deadline, None, level, delay_at))


async def test_the_more_important_run_first_and_the_less_important_give_way() -> None:
    engine = HeldEngine()
    dispatcher = Dispatcher(BatchingLimits(1, 0.0, 3, 1 << 20, level_max_requests=(0, 0)), [engine.execute])
    first = ask(dispatcher, 0)
    await engine.started.wait()
    low = [ask(dispatcher, value, level=1) for value in (1, 2, 3)]
    await until(lambda: dispatcher.pending == 3)
    high = ask(dispatcher, 4)
    await until(low[2].done)
    with pytest.raises(QueueFull, match="more important requests took its place"):
        await low[2]
    refused = ask(dispatcher, 5, level=1)
    with pytest.raises(QueueFull, match="max_queue_rows 3"):
        await refused
    engine.go.set()
    await asyncio.gather(first, high, *low[:2])
    assert engine.batches == [[0], [4], [1], [2]]
    await dispatcher.close()


async def test_a_refusal_says_how_long_the_queue_takes() -> None:
    engine = HeldEngine(is_held=False)
    dispatcher = Dispatcher(BatchingLimits(1, 0.0, 2, 1 << 20), [engine.execute])
    await ask(dispatcher, 0)
    engine.go.clear()
    engine.started.clear()
    waiting = [ask(dispatcher, 1)]
    await engine.started.wait()
    waiting += [ask(dispatcher, value) for value in (2, 3)]
    await until(lambda: dispatcher.pending == 2)
    with pytest.raises(QueueFull) as caught:
        await ask(dispatcher, 4)
    assert caught.value.retry_after_s == pytest.approx(2 * 0.25), "two rows wait, and the engine says a quarter of a second for each"
    engine.go.set()
    await asyncio.gather(*waiting)
    await dispatcher.close()


async def test_a_level_of_its_own_limit() -> None:
    engine = HeldEngine()
    dispatcher = Dispatcher(BatchingLimits(1, 0.0, 100, 1 << 20, level_max_requests=(0, 1)), [engine.execute])
    first = ask(dispatcher, 0)
    await engine.started.wait()
    waiting = [ask(dispatcher, 1), ask(dispatcher, 2), ask(dispatcher, 3, level=1)]
    await until(lambda: dispatcher.pending == 3)
    with pytest.raises(QueueFull, match="too many requests of priority 2 are waiting: 1 and 1 more exceed max_requests 1"):
        await ask(dispatcher, 4, level=1)
    engine.go.set()
    await asyncio.gather(first, *waiting)
    await dispatcher.close()


async def test_what_waited_too_long_is_delayed_or_fails() -> None:
    now = 0.0
    engine = HeldEngine()
    limits = BatchingLimits(1, 0.0, 100, 1 << 20, level_max_requests=(0,), delays=True)
    dispatcher = Dispatcher(limits, [engine.execute], clock=lambda: now)
    first = ask(dispatcher, 0)
    await engine.started.wait()
    delayed, failing = ask(dispatcher, 1, delay_at=5.0), ask(dispatcher, 2, deadline=5.0)
    await until(lambda: dispatcher.pending == 2)
    now = 6.0
    newer = ask(dispatcher, 3, delay_at=11.0)
    await until(lambda: dispatcher.pending == 3)
    engine.go.set()
    await asyncio.gather(first, delayed, newer)
    assert engine.batches == [[0], [3], [1]]
    with pytest.raises(DeadlineExpired):
        await failing
    await dispatcher.close()


async def test_answers_leave_in_the_order_of_their_requests() -> None:
    engines = [HeldEngine(), HeldEngine(), HeldEngine()]
    dispatcher = Dispatcher(BatchingLimits(1, 0.0, 100, 1 << 20), [engine.execute for engine in engines], preserve_ordering=True)
    tasks = [ask(dispatcher, value) for value in range(3)]
    await asyncio.gather(*(engine.started.wait() for engine in engines))
    by_value = {engine.batches[0][0]: engine for engine in engines}
    ended: list[int] = []
    for value, task in enumerate(tasks):
        task.add_done_callback(partial(_note, ended, value))
    by_value[2].go.set()
    tasks[1].cancel()
    await until(tasks[1].done)
    await until(lambda: len(by_value[2].ended) == 1)
    assert ended == [1], "the third is ready and waits for the first; the second left"
    by_value[0].go.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert ended == [1, 0, 2]
    by_value[1].go.set()
    await dispatcher.close()


def _note(ended: list[int], value: int, _task: asyncio.Task[Execution]) -> None:
    ended.append(value)


def test_answer_order_forgets_nothing() -> None:
    order: AnswerOrder[str] = AnswerOrder()
    first, second, third, fourth = (order.admit() for _ in range(4))
    assert order.answered(second, "b") == []
    assert order.left(third) == []
    assert order.answered(third, "c") == [], "it has left"
    assert order.answered(first, "a") == ["a", "b"]
    assert order.left(fourth) == []
    assert len(order) == 0
