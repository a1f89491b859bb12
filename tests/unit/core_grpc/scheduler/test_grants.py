"""Models that share a device: real dispatchers, with engines that the tests hold or that move a clock of the tests' own."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from core_grpc.errors import DeadlineExpired, ModelLoadFailed, ModelNotReady
from core_grpc.scheduler.dispatcher import BatchResult, Dispatcher, Execution, Member
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from core_grpc.scheduler.grants import ComputeGrants, Gate, GateOrder
from core_grpc.scheduler.resources import ResourceNeed
from tests.unit.core_grpc.scheduler.held_engine import HeldEngine, until

CPU = GateOrder("cpu")
LICENCE = ResourceNeed("licence", 1, is_global=True)


async def loop_turns(count: int = 5) -> None:
    """Lets everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


class FakeClock:
    """Stands still, but for engines that say how long they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedEngine:
    """Writes its name down for each batch, which takes so long by the clock and a few turns of the loop."""

    def __init__(self, name: str, clock: FakeClock, log: list[str], cost_s: float = 1.0) -> None:
        self.name = name
        self.clock = clock
        self.log = log
        self.cost_s = cost_s

    async def execute(self, batch: Sequence[Member]) -> BatchResult:
        self.log.append(self.name)
        await loop_turns()
        self.clock.now += self.cost_s
        return BatchResult([member.inputs for member in batch], self.cost_s)


def one_slot(clock: FakeClock | None = None) -> ComputeGrants:
    return ComputeGrants(lambda _device: 1, clock=clock or FakeClock())


def dispatcher(*engines: HeldEngine | TimedEngine, gates: Sequence[Gate], batch: int = 1, clock: FakeClock | None = None) -> Dispatcher:
    limits = BatchingLimits(batch, 0.0, 10_000, 1 << 20)
    return Dispatcher(limits, [engine.execute for engine in engines], clock=clock or FakeClock(), gates=gates)


def ask(model: Dispatcher, *values: int, deadline: float | None = None) -> asyncio.Task[Execution]:
    array = np.array(values).reshape(-1, 1)
    return asyncio.create_task(model.infer({"X": array}, len(values), array.nbytes, None, deadline))


async def test_a_model_with_little_work_is_next() -> None:
    clock, log = FakeClock(), list[str]()
    grants = one_slot(clock)
    hot, rare = (dispatcher(TimedEngine(name, clock, log), gates=grants.gates([CPU]), clock=clock) for name in ("hot", "rare"))
    flood = [ask(hot, 1) for _ in range(50)]
    for pause in (3, 20, 4, 11, 28):
        started = len(log)
        while len(log) <= started:  # noqa: ASYNC110 (each turn of the loop counts here)
            await asyncio.sleep(0)
        began = len(log)
        await ask(rare, 1)
        assert log[began] == "rare", "only what was under way came first"
        await loop_turns(pause)
    await asyncio.gather(*flood)
    assert Counter(log) == {"hot": 50, "rare": 5}
    await asyncio.gather(hot.close(), rare.close())


@pytest.mark.parametrize(("weight", "cost_s", "expected"), [(1.0, 1.0, 50), (3.0, 1.0, 75), (1.0, 4.0, 20), (0.25, 1.0, 20)])
async def test_busy_models_share_by_weight_and_time(weight: float, cost_s: float, expected: int) -> None:
    """Of the first 100 executions so many are of the model with that weight and cost; the other has 1 and 1."""
    clock, log = FakeClock(), list[str]()
    grants = one_slot(clock)
    other = dispatcher(TimedEngine("other", clock, log), gates=grants.gates([CPU]), clock=clock)
    gates = grants.gates([CPU, CPU], weight)
    model = dispatcher(*[TimedEngine("model", clock, log, cost_s)] * 2, gates=gates, clock=clock)
    tasks = [ask(each, 1) for _ in range(100) for each in (other, model)]
    await until(lambda: len(log) >= 100)
    assert abs(log[:100].count("model") - expected) <= 2
    if weight == cost_s == 1:
        assert all(first != second for first, second in pairwise(log[2:100]))
    await asyncio.gather(*tasks)
    await asyncio.gather(other.close(), model.close())


async def test_a_batch_forms_when_the_grant_is_there() -> None:
    """Requests that come while the device is another's join the batch; before the grant nothing is taken from the queue."""
    grants = one_slot()
    first, second = HeldEngine(), HeldEngine(is_held=False)
    one, two = dispatcher(first, gates=grants.gates([CPU])), dispatcher(second, gates=grants.gates([CPU]), batch=8)
    running = ask(one, 1)
    await first.started.wait()
    tasks = [ask(two, 1)]
    await loop_turns()
    tasks += [ask(two, 2), ask(two, 3)]
    await loop_turns()
    assert (two.pending, second.batches) == (3, [])
    first.go.set()
    await asyncio.gather(running, *tasks)
    assert second.batches == [[1, 2, 3]]
    await asyncio.gather(one.close(), two.close())


async def test_with_free_slots_nobody_waits_for_a_turn_of_the_loop() -> None:
    grants = ComputeGrants(lambda _device: 2)
    gates = grants.gates([CPU, CPU])
    assert gates[0] is gates[1]
    assert [gates[0].try_acquire() for _ in range(3)] == [True, True, False]
    assert gates[0].is_in_line
    for _ in range(2):
        gates[0].release()
    gates[0].close()
    assert repr(grants) == "<ComputeGrants: {'cpu': <FairShare: 2 of 2 slots free, 0 in line>}, <ResourceLimiter: nothing, 0 in line>>"


async def test_devices_do_not_wait_for_each_other() -> None:
    grants = one_slot()
    engines = [HeldEngine(), HeldEngine()]
    model = dispatcher(*engines, gates=grants.gates([GateOrder("gpu:0"), GateOrder("gpu:1")]))
    (blocker,) = grants.gates([GateOrder("gpu:1")])
    assert blocker.try_acquire()
    tasks = [ask(model, 1), ask(model, 2)]
    await engines[0].started.wait()
    assert not engines[1].started.is_set(), "its device is another's"
    assert model.pending == 1
    blocker.release()
    await engines[1].started.wait()
    for engine in engines:
        engine.go.set()
    await asyncio.gather(*tasks)
    await model.close()


async def test_a_turn_that_nobody_takes_passes_on() -> None:
    """The only request is withdrawn, or expires, while its model is in line: the slot goes to the next one."""
    clock = FakeClock()
    grants = one_slot(clock)
    blocker, last = grants.gates([CPU]), grants.gates([CPU])
    engine = HeldEngine(is_held=False)
    model = dispatcher(engine, gates=grants.gates([CPU]), clock=clock)
    assert blocker[0].try_acquire()
    left = ask(model, 1)
    await loop_turns()
    left.cancel()
    await asyncio.wait([left])
    assert not last[0].try_acquire()
    heard = asyncio.Event()
    last[0].on_turn = lambda: heard.set() if last[0].try_acquire() else None
    blocker[0].release()
    await heard.wait()
    late = ask(model, 1, deadline=5.0)
    await loop_turns()
    clock.now = 6.0
    last[0].release()
    with pytest.raises(DeadlineExpired):
        await late
    assert engine.batches == []
    assert blocker[0].try_acquire()
    blocker[0].release()
    await model.close()


async def test_a_failing_batch_gives_its_grant_back() -> None:
    grants = one_slot()
    engine = HeldEngine(is_held=False)
    model = dispatcher(engine, gates=grants.gates([CPU]), batch=8)
    outcomes = await asyncio.gather(ask(model, 1), ask(model, 99), ask(model, 2), return_exceptions=True)
    assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 1
    (other,) = grants.gates([CPU])
    await loop_turns()
    assert other.try_acquire()
    other.release()
    await model.close()


async def test_a_model_that_goes_leaves_the_line_and_gives_back_what_it_had() -> None:
    grants = one_slot()
    engine, waiting = HeldEngine(), HeldEngine()
    going, gone = dispatcher(engine, gates=grants.gates([CPU])), dispatcher(waiting, gates=grants.gates([CPU]))
    (other,) = grants.gates([CPU])
    heard = asyncio.Event()
    other.on_turn = lambda: heard.set() if other.try_acquire() else None
    running = ask(going, 1)
    await engine.started.wait()
    refused = ask(gone, 1)
    await loop_turns()
    assert not other.try_acquire()
    await gone.close()
    with pytest.raises(ModelNotReady):
        await refused
    closing = asyncio.create_task(going.close())
    await loop_turns()
    assert not heard.is_set(), "what executes is finished first"
    engine.go.set()
    await asyncio.gather(running, closing, heard.wait())
    other.release()
    assert waiting.batches == []


async def test_a_turn_that_comes_to_a_model_that_is_closing_passes_on() -> None:
    grants = one_slot()
    (blocker,), (closed,), (other,) = grants.gates([CPU]), grants.gates([CPU]), grants.gates([CPU])
    assert blocker.try_acquire()
    assert not closed.try_acquire()
    blocker.release()  # Its turn is on the way,
    closed.close()  # and it closes before it hears of it.
    closed.close()
    assert other.try_acquire()
    await loop_turns()
    assert not closed.try_acquire()
    other.release()
    assert blocker.try_acquire()


async def test_resources_come_first_and_the_slot_last() -> None:
    """Who waits for a resource holds no slot; who waits for a slot holds its resources."""
    grants = ComputeGrants(lambda _device: 1)
    with_licence = GateOrder("cpu", needs=(LICENCE,))
    (holder,) = grants.gates([GateOrder("cpu", takes_slot=False, needs=(LICENCE,))])
    (waiter,), (plain,) = grants.gates([with_licence]), grants.gates([CPU])
    got: list[str] = []
    waiter.on_turn = lambda: got.append("waiter") if waiter.try_acquire() else None
    plain.on_turn = lambda: got.append("plain") if plain.try_acquire() else None
    assert holder.try_acquire()
    assert not waiter.try_acquire()
    assert plain.try_acquire(), "the slot is free while the other waits for the licence"
    holder.release()
    await loop_turns()
    assert waiter.is_in_line
    assert not holder.try_acquire(), "the licence is kept while its holder waits for the slot"
    plain.release()
    await loop_turns()
    assert got == ["waiter"]
    waiter.release()
    waiter.close()
    await loop_turns()
    holder.close()
    assert grants.limiter.free(("global", "licence")) == 0
    plain.close()


async def test_closing_in_either_line_gives_everything_back() -> None:
    grants = ComputeGrants(lambda _device: 1)
    orders = [GateOrder("cpu", needs=(LICENCE,))]
    (first,), (second,), (plain,) = grants.gates(orders), grants.gates(orders), grants.gates([CPU])
    (third,) = grants.gates([GateOrder("cpu", takes_slot=False, needs=(LICENCE,))])
    turns: list[bool] = []
    third.on_turn = lambda: turns.append(third.try_acquire())
    assert plain.try_acquire()
    assert not first.try_acquire()  # Has the licence, waits for the slot.
    assert not second.try_acquire()  # Waits for the licence.
    assert not third.try_acquire()  # Likewise, behind it.
    second.close()
    await loop_turns()
    assert not turns
    first.close()
    await loop_turns()
    assert turns == [True], "the licence came to it at once"
    third.release()
    third.close()
    plain.release()
    assert plain.try_acquire()
    plain.release()
    assert repr(grants.limiter) == "<ResourceLimiter: nothing, 0 in line>"


async def test_resources_that_a_closing_gate_waited_with_are_there_at_once() -> None:
    """It executes once and waits to execute again; what it had for the second time is given back before the first is over."""
    grants = ComputeGrants(lambda _device: 1, {("", "R"): 2})
    (twice,) = grants.gates([GateOrder("cpu", needs=(ResourceNeed("R"),))])
    (other,) = grants.gates([GateOrder("cpu", takes_slot=False, needs=(ResourceNeed("R"),))])
    turns: list[bool] = []
    other.on_turn = lambda: turns.append(other.try_acquire())
    assert twice.try_acquire()
    assert not twice.try_acquire()
    assert not other.try_acquire()
    twice.close()
    await loop_turns()
    assert turns == [True]
    twice.release()
    other.release()


async def test_another_idle_instance_gets_in_line_when_the_first_takes_the_turn() -> None:
    """Two slots: when one of them becomes free, an idle instance with work uses it, although its model executes already."""
    clock = FakeClock()
    grants = ComputeGrants(lambda _device: 2, clock=clock)
    (blocker,), (rival,) = grants.gates([CPU]), grants.gates([CPU])
    engines = [HeldEngine(), HeldEngine()]
    model = dispatcher(*engines, gates=grants.gates([CPU, CPU], weight=100.0), clock=clock)
    assert blocker.try_acquire()
    assert rival.try_acquire()
    tasks = [ask(model, value) for value in range(4)]
    await loop_turns()
    clock.now = 1.0
    rival.release()
    rival.on_turn = rival.close
    assert not rival.try_acquire()
    await loop_turns()
    running, idle = engines if engines[0].started.is_set() else engines[::-1]
    clock.now = 2.0
    running.go.set()
    running.go = asyncio.Event()
    await loop_turns()
    assert len(running.batches) == 2, "it had the turn again, because it had less of the device for its weight"
    assert not idle.started.is_set()
    blocker.release()
    await loop_turns()
    assert idle.started.is_set()
    for engine in engines:
        engine.go.set()
    await asyncio.gather(*tasks)
    await model.close()


async def test_an_order_that_cannot_be_met_opens_no_gate() -> None:
    grants = ComputeGrants(lambda _device: 1, {("", "R"): 1})
    orders = [GateOrder("cpu", needs=(ResourceNeed("R"),)), GateOrder("cpu", needs=(ResourceNeed("R", 2),))]
    with pytest.raises(ModelLoadFailed, match="'R' count: wanted at most 1"):
        grants.gates(orders)
    assert repr(grants.limiter) == "<ResourceLimiter: nothing, 0 in line>"


async def test_while_in_line_no_timer_spins() -> None:
    """A batch that is due and waits for a gate has no moment at which to look again."""
    grants = one_slot()
    (blocker,) = grants.gates([CPU])
    assert blocker.try_acquire()
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    model = Dispatcher(BatchingLimits(1, 0.0, 10, 1 << 20), [HeldEngine(is_held=False).execute], clock=clock, gates=grants.gates([CPU]))
    task = ask(model, 1, deadline=math.inf)
    await loop_turns()
    before = looks
    await asyncio.sleep(0.02)
    assert looks == before
    blocker.release()
    await task
    await model.close()
