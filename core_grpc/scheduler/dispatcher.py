"""The asyncio side of the scheduler: admits requests, and keeps the model's instances fed from one shared batcher.

Each instance has one loop, *expire → take → execute → settle*, so a batch forms as late as possible: when an instance is free, and where
models share a device, when it may execute there (``grants.py``). A request costs one future: no task and no timer of its own. A caller
may leave at any time; whoever settles its request finds a finished future and does nothing. Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from core_grpc.errors import GatewayError, ModelNotReady, QueueFull
from core_grpc.scheduler.answer_order import AnswerOrder
from core_grpc.scheduler.charges import charge_members
from core_grpc.scheduler.dynamic_batcher import BatchingLimits, DynamicBatcher, Pending
from core_grpc.scheduler.grants import Gate
from core_grpc.scheduler.outcomes import expired, failure_of, settle
from core_grpc.types import Array, InferRequest

_ROW_SMOOTHING = 0.1
"""The weight of the newest batch in what a row is said to take."""

_TIMER_STEP_S = 0.001
"""Event loops wait in milliseconds; a shorter timer would fire early and spin."""


class Execution(NamedTuple):
    """What one request got from the engine, and when."""

    outputs: Mapping[str, Array]
    queue_s: float
    """From admission until an instance took the batch."""
    compute_s: float
    """From then until the outputs were there, on the instance's thread."""
    batch_rows: int
    """Rows of the batch that the request was part of; 0 where nothing ran, because the answer was in the response cache."""


class BatchResult(NamedTuple):
    """What an instance made of a batch."""

    parts: Sequence[Mapping[str, Array] | GatewayError]
    """For each member, in order, its outputs or why it failed."""
    compute_s: float


class Member(Pending):
    """An admitted request."""

    __slots__ = ("inputs", "request", "turn", "waiter")

    def __init__(  # noqa: PLR0917 (one for each request: keywords and a call to the base's constructor are felt)
        self,
        inputs: Mapping[str, Array],
        waiter: asyncio.Future[Execution],
        rows: int,
        nbytes: int,
        group: Hashable,
        deadline: float,
        arrival: float,
        request: InferRequest | None,
        level: int,
        delay_at: float,
    ) -> None:
        self.inputs = inputs
        self.waiter = waiter
        self.rows = rows
        self.nbytes = nbytes
        self.group = group
        self.deadline = deadline
        self.arrival = arrival
        self.level = level
        self.delay_at = delay_at
        self.lane = 0
        self.ticket = 0
        self.turn = 0
        self.request = request

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the answer any more. May be read from any thread."""
        return self.waiter.done()


class QueueDepth(NamedTuple):
    """How much waits."""

    requests: int
    rows: int
    nbytes: int
    """Of input."""


_Answer: TypeAlias = tuple[Member, Execution | GatewayError]

Execute: TypeAlias = Callable[[Sequence[Member]], Awaitable[BatchResult]]
"""Runs a batch on one model instance; one call at a time."""


class _Idle(NamedTuple):
    """An instance that waits for a batch; an empty one ends it."""

    batch: asyncio.Future[list[Member]]
    gate: Gate | None


class Dispatcher:
    """See the module's text. ``on_executed`` is told rows and seconds of each run, ``on_failed`` the seconds of one without a result;
    ``clock`` is that of deadlines."""

    def __init__(
        self,
        limits: BatchingLimits,
        executes: Sequence[Execute],
        on_executed: Callable[[int, float], None] = lambda _rows, _compute_s: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_failed: Callable[[float], None] = lambda _compute_s: None,
        preserve_ordering: bool = False,
        gates: Sequence[Gate] = (),
    ) -> None:
        """``gates`` has one for each of ``executes``, or none at all where they need not ask before they execute."""
        self._batcher: DynamicBatcher[Member] = DynamicBatcher(limits)
        self._order: AnswerOrder[_Answer] | None = AnswerOrder() if preserve_ordering else None
        self._row_s = 0.0
        """What a row took the engine lately, smoothed; 0 until something ran."""
        self._on_executed = on_executed
        self._on_failed = on_failed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Idle] = []
        self._gates = gates
        self._is_feeding = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_closed = False
        self._drained = asyncio.Event()
        self._executing = 0
        for gate in gates:
            gate.on_turn = self._wake
        instances = zip(executes, gates or (None,) * len(executes), strict=True)
        self._tasks = [asyncio.create_task(self._serve(execute, gate), name="dispatcher") for execute, gate in instances]

    def __repr__(self) -> str:
        return f"<Dispatcher: {len(self._batcher)} pending, {self._executing} of {len(self._tasks)} instances executing>"

    @property
    def pending(self) -> int:
        """Requests that were admitted and are not executing."""
        return len(self._batcher)

    @property
    def depth(self) -> QueueDepth:
        """What waits."""
        return QueueDepth(len(self._batcher), self._batcher.waiting_rows, self._batcher.waiting_bytes)

    async def infer(  # noqa: PLR0917 (see Member)
        self,
        inputs: Mapping[str, Array],
        rows: int,
        nbytes: int,
        group: Hashable,
        deadline: float | None,
        request: InferRequest | None = None,
        level: int = 0,
        delay_at: float = math.inf,
    ) -> Execution:
        """Waits for a place in a batch and its result.

        Args:
            inputs: arrays with the batch dimension first, which nobody changes until this returns.
            rows: their first dimension.
            nbytes: their size, counted against the queue's limit.
            group: equal for requests that may share a batch.
            deadline: a moment of the clock; None for no limit.
            request: what the inputs came with, for instances that read more than arrays.
            level: 0 is the most important, as the limits count them.
            delay_at: a moment of the clock from which it stands behind the others of its level.

        Raises:
            QueueFull, DeadlineExpired: it was not run. QueueFull says when to try again.
            BackendFailed, InvalidArgument: the engine failed or refused the values.
            ModelNotReady: the model is going away.
        """
        now = self._clock()
        if self._is_closed:
            raise ModelNotReady("the model is being unloaded")
        if deadline is None:
            deadline = math.inf
        elif deadline <= now:
            raise expired()
        waiter: asyncio.Future[Execution] = self._loop.create_future()
        member = Member(inputs, waiter, rows, nbytes, group, deadline, now, request, level, delay_at)
        try:
            self._batcher.offer(member)
        except QueueFull:
            self._offer_to_full(member, now)
        if self._order is not None:
            member.turn = self._order.admit()
        if self._idle:
            if not self._is_feeding:
                self._is_feeding = True
                self._loop.call_soon(self._on_turn_end)
        elif deadline < self._timer_at:
            self._arm(deadline, now)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._batcher.withdraw(member)
            self._leave_order(member)
            raise

    async def drain(self) -> None:
        """Waits until nothing is pending or executing. New work is still admitted: whoever drains stops it at the door."""
        while self._batcher or self._executing:
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        """Refuses new work, fails what is pending, and waits for what is executing; idempotent."""
        self._is_closed = True
        for member in self._batcher.clear():
            self._refuse(member, ModelNotReady("the model is being unloaded"))
        if self._timer is not None:
            self._timer.cancel()
        for gate in self._gates:
            gate.close()
        while self._idle:
            self._idle.pop().batch.set_result([])
        self._tell_drained()
        await asyncio.gather(*self._tasks)

    def _on_turn_end(self) -> None:
        """Requests that arrived in one turn of the loop share a batch."""
        self._is_feeding = False
        self._wake()

    def _wake(self) -> None:
        now = self._clock()
        self._expire(now)
        self._feed(now)
        wakeup = self._batcher.next_deadline()
        # A batch that is due and was not taken waits for a gate, not for a moment.
        if self._idle and (batch_at := self._batcher.next_batch_at()) > now:
            wakeup = min(wakeup, batch_at)
        if wakeup < self._timer_at:
            self._arm(wakeup, now)
        self._tell_drained()

    def _feed(self, now: float) -> bool:
        """Gives batches to idle instances; whether one got any."""
        has_fed = False
        for index in reversed(range(len(self._idle))):
            if batch := self._take(self._idle[index].gate, now):
                self._idle.pop(index).batch.set_result(batch)
                has_fed = True
            elif not self._gates:
                break
        return has_fed

    def _take(self, gate: Gate | None, now: float) -> list[Member] | None:
        """A batch for an instance behind that gate, with the right to execute it; None where nothing is due or the gate is in line."""
        if gate is None:
            batch = self._batcher.take(now)
        elif self._batcher.next_batch_at() > now or not gate.try_acquire():
            return None
        elif not (batch := self._batcher.take(now)):
            gate.release()
        if batch:
            self._executing += 1
        return batch

    def _expire(self, now: float) -> None:
        for member in self._batcher.expire(now):
            self._refuse(member, expired())

    def _offer_to_full(self, member: Member, now: float) -> None:
        """Makes room where the queue has none: idle instances take what they can, then less important requests give way."""
        try:
            # Idle instances take their batches at the end of the loop's turn; what they will take must not count as waiting.
            self._feed(now)
            for displaced in self._batcher.displace_for(member):
                self._refuse(displaced, self._full("more important requests took its place in the queue"))
            self._batcher.offer(member)
        except QueueFull as error:
            raise self._full(error.message) from None

    def _full(self, message: str) -> QueueFull:
        """The refusal, with the time that what waits will take as a hint when to try again."""
        return QueueFull(message, retry_after_s=self._batcher.waiting_rows * self._row_s / max(len(self._tasks), 1))

    def _arm(self, moment: float, now: float) -> None:
        """Sets the one timer. It is left alone when what it was set for goes away: it then fires for nothing and looks further."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(moment - now, _TIMER_STEP_S), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._wake()

    async def _serve(self, execute: Execute, gate: Gate | None) -> None:
        """The loop of one instance; ends when it is handed an empty batch."""
        while True:
            now = self._clock()
            self._expire(now)
            batch = self._take(gate, now) or await self._next_batch(gate)
            if not batch:
                return
            try:
                await self._run(execute, batch)
            finally:
                if gate is not None:
                    gate.release(has_more=self._batcher.next_batch_at() <= self._clock())
            # The members' tensors must not live until the next batch comes.
            del batch
            self._executing -= 1
            self._tell_drained()

    async def _next_batch(self, gate: Gate | None) -> list[Member]:
        waiting: asyncio.Future[list[Member]] = self._loop.create_future()
        if self._is_closed:
            return []
        self._idle.append(_Idle(waiting, gate))
        self._wake()
        return await waiting

    async def _run(self, execute: Execute, batch: Sequence[Member]) -> None:
        """Executes a batch and settles its members. When it fails they run again one by one, so that only the guilty one fails."""
        taken = self._clock()
        try:
            result = await execute(batch)
        except Exception as error:  # noqa: BLE001 (whatever a backend raises belongs to the callers, not to this loop)
            compute_s = self._clock() - taken
            self._on_failed(compute_s)
            charge_members(batch, [member.rows for member in batch], compute_s)
            if len(batch) == 1:
                self._answer(batch[0], failure_of(error))
            else:
                for member in batch:
                    await self._run_again(execute, member)
        else:
            self._settle_batch(batch, result, taken)

    async def _run_again(self, execute: Execute, member: Member) -> None:
        if member.waiter.done():
            return
        if member.deadline <= self._clock():
            self._refuse(member, expired())
        else:
            await self._run(execute, [member])

    def _settle_batch(self, batch: Sequence[Member], result: BatchResult, taken: float) -> None:
        rows = [member.rows for member in batch]
        batch_rows = sum(rows)
        self._on_executed(batch_rows, result.compute_s)
        charge_members(batch, rows, result.compute_s)
        self._row_s += (result.compute_s / batch_rows - self._row_s) * (_ROW_SMOOTHING if self._row_s else 1)
        for member, part in zip(batch, result.parts, strict=True):
            if isinstance(part, GatewayError):
                self._answer(member, part)
            elif self._order is not None:
                self._answer(member, Execution(part, taken - member.arrival, result.compute_s, batch_rows))
            elif not member.waiter.done():
                member.waiter.set_result(Execution(part, taken - member.arrival, result.compute_s, batch_rows))

    def _answer(self, member: Member, outcome: Execution | GatewayError) -> None:
        """Gives a member what came of it, in its turn."""
        if self._order is None:
            settle(member.waiter, outcome)
        else:
            for other, its_outcome in self._order.answered(member.turn, (member, outcome)):
                settle(other.waiter, its_outcome)

    def _refuse(self, member: Member, error: GatewayError) -> None:
        """Fails a member that did not run, at once: there is no answer that could be out of order."""
        settle(member.waiter, error)
        self._leave_order(member)

    def _leave_order(self, member: Member) -> None:
        if self._order is not None:
            for other, outcome in self._order.left(member.turn):
                settle(other.waiter, outcome)

    def _tell_drained(self) -> None:
        if not (self._executing or self._batcher):
            self._drained.set()
