"""Real dispatchers that share devices and resources, driven by drawn scripts: callers ask and leave, engines finish and fail, models go.

However it went: never more executions than slots, never more of a resource than there is; who stays is answered, and in the end
nothing is held and nobody is in line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core_grpc.errors import BackendFailed, ModelNotReady
from core_grpc.scheduler.dispatcher import BatchResult, Dispatcher, Execution, Member
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from core_grpc.scheduler.grants import ComputeGrants, GateOrder
from core_grpc.scheduler.resources import GLOBAL, ResourceNeed

R, S = ResourceNeed("R", 2), ResourceNeed("S", 1, is_global=True)
TOTALS = {("", "R"): 3, (GLOBAL, "S"): 1}
ORDERS = (
    GateOrder("cpu"),
    GateOrder("cpu", needs=(S,)),
    GateOrder("cpu", needs=(R, S), priority=2),
    GateOrder("gpu:0", needs=(S,)),
    GateOrder("cpu", takes_slot=False, needs=(ResourceNeed("R"),)),
)

orders = st.lists(st.lists(st.sampled_from(ORDERS), min_size=1, max_size=3), min_size=2, max_size=4)
steps = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "finish", "finish", "leave", "fail", "close", "turn"]), st.integers(0, 9)), max_size=60
)


class Engine:
    """One instance, whose batches end when the script says so."""

    def __init__(self, order: GateOrder, running: list[GateOrder]) -> None:
        self.order = order
        self.running = running
        self.go: asyncio.Future[None] | None = None

    async def execute(self, batch: Sequence[Member]) -> BatchResult:
        self.running.append(self.order)
        self.go = asyncio.get_running_loop().create_future()
        try:
            await self.go
        finally:
            self.running.remove(self.order)
            self.go = None
        return BatchResult([member.inputs for member in batch], 0.0)

    def end(self, error: Exception | None = None) -> None:
        if self.go is not None and not self.go.done():
            if error:
                self.go.set_exception(error)
            else:
                self.go.set_result(None)


class Script:
    """Models behind gates, and what the script did with them."""

    def __init__(self, models: list[list[GateOrder]], slots: int) -> None:
        self.slots = slots
        self.running: list[GateOrder] = []
        self.grants = ComputeGrants(lambda _device: slots, TOTALS)
        self.engines = [[Engine(order, self.running) for order in model] for model in models]
        limits = BatchingLimits(2, 0.0, 1000, 1 << 20)
        self.models = [
            Dispatcher(limits, [engine.execute for engine in engines], gates=self.grants.gates(model))
            for model, engines in zip(models, self.engines, strict=True)
        ]
        self.closing: dict[int, asyncio.Task[None]] = {}
        self.requests: deque[tuple[int, asyncio.Task[Execution]]] = deque()

    def step(self, what: str, number: int) -> None:
        index = number % len(self.models)
        engines = self.engines[index]
        if what == "ask":
            self.requests.append((index, asyncio.create_task(self.models[index].infer({"X": np.zeros((1, 1))}, 1, 8, None, None))))
        elif what == "leave" and self.requests:
            self.requests.rotate(number)
            self.requests.pop()[1].cancel()
        elif what in {"finish", "fail"}:
            engines[number % len(engines)].end(BackendFailed("as the script says") if what == "fail" else None)
        elif what == "close" and number < 2:
            self.closing.setdefault(index, asyncio.create_task(self.models[index].close()))

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
            self.check()

    def check(self) -> None:
        for device in ("cpu", "gpu:0"):
            running = [order for order in self.running if order.device == device]
            assert sum(order.takes_slot for order in running) <= self.slots
            assert sum(need.count for order in running for need in order.needs if need.name == "R") <= 3
        assert sum(need.name == "S" for order in self.running for need in order.needs) <= 1

    async def finish(self) -> None:
        """Lets every engine go on until all who stay are answered."""
        async with asyncio.timeout(20):
            while not all(task.done() for _, task in self.requests):
                for engines in self.engines:
                    for engine in engines:
                        engine.end()
                await self.settle()
            for index, task in self.requests:
                error = task.exception()
                assert error is None or isinstance(error, BackendFailed) or (isinstance(error, ModelNotReady) and index in self.closing)
            closing = asyncio.gather(*(model.close() for model in self.models), *self.closing.values())
            while not closing.done():
                for engines in self.engines:
                    for engine in engines:
                        engine.end()
                await self.settle()
            await closing
        await self.settle()
        assert repr(self.grants.limiter) == "<ResourceLimiter: nothing, 0 in line>"
        for share in self.grants.shares.values():
            assert (share.free, share.has_line) == (self.slots, False)


@given(models=orders, slots=st.integers(1, 2), script=steps)
@settings(max_examples=120, deadline=None)
def test_no_slot_is_lost_and_nobody_waits_for_ever(models: list[list[GateOrder]], slots: int, script: list[tuple[str, int]]) -> None:
    async def run() -> None:
        state = Script(models, slots)
        for what, number in script:
            state.step(what, number)
            if what == "turn":
                await state.settle()
        await state.finish()

    asyncio.run(run())
