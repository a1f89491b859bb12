"""The asyncio side of the sequence batcher: admits requests, and keeps each instance fed with batches of the sequences that it holds.

As ``dispatcher.py``, of whose rules all hold: each instance has one loop, *expire → take → execute → settle*, and a request costs one
future. Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from core_grpc.errors import Cancelled, GatewayError, ModelNotReady, QueueFull
from core_grpc.scheduler.charges import charge_members
from core_grpc.scheduler.dispatcher import BatchResult, Execution, QueueDepth
from core_grpc.scheduler.grants import Gate
from core_grpc.scheduler.live_sequences import SequenceLimits, SequenceRequest
from core_grpc.scheduler.outcomes import expired, failure_of, settle
from core_grpc.scheduler.sequence_batcher import SequenceBatcher
from core_grpc.scheduler.sequences import SequenceCall
from core_grpc.types import Array, CallerStream, InferRequest

_ROW_SMOOTHING = 0.1
"""The weight of the newest batch in what a request is said to take."""

_TIMER_STEP_S = 0.001
"""Event loops wait in milliseconds; a shorter timer would fire early and spin."""


class SequenceMember(SequenceRequest):
    """An admitted request of a sequence."""

    __slots__ = ("inputs", "is_lost", "request", "waiter")

    def __init__(  # noqa: PLR0917 (made for every request)
        self,
        call: SequenceCall,
        inputs: Mapping[str, Array],
        waiter: asyncio.Future[Execution],
        nbytes: int,
        group: Hashable,
        deadline: float,
        arrival: float,
        request: InferRequest | None,
    ) -> None:
        super().__init__(call, nbytes, group, deadline, arrival, request.stream if request else None)
        self.inputs = inputs
        self.waiter = waiter
        self.request = request
        self.is_lost = False
        """Whether it was taken and nobody knows that it ran."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the answer any more. May be read from any thread."""
        return self.waiter.done()


Execute: TypeAlias = Callable[[Sequence[SequenceMember]], Awaitable[BatchResult]]
"""Runs a batch on one model instance; one call at a time."""


class SequenceDispatcher:
    """See the module's text. ``on_executed`` is told requests and seconds of each run, ``on_failed`` the seconds of one without a
    result; ``clock`` is that of deadlines.

    Where ``runs_again``, the requests of a batch that failed run again one by one: not for an engine that keeps states of its own.
    """

    def __init__(
        self,
        limits: SequenceLimits,
        executes: Sequence[Execute],
        on_executed: Callable[[int, float], None] = lambda _rows, _compute_s: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_failed: Callable[[float], None] = lambda _compute_s: None,
        runs_again: bool = True,
        gates: Sequence[Gate] = (),
    ) -> None:
        """``gates`` has one for each of ``executes``, or none at all where they need not ask before they execute."""
        self._batcher: SequenceBatcher[SequenceMember] = SequenceBatcher(limits)
        self._runs_again = runs_again
        self._request_s = 0.0
        """What a request took the engine lately, smoothed; 0 until something ran."""
        self._on_executed = on_executed
        self._on_failed = on_failed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._idle: dict[int, asyncio.Future[list[SequenceMember]]] = {}
        """By instance that waits for a batch."""
        self._gates = gates
        self._is_feeding = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_draining = False
        self._is_closed = False
        self._drained = asyncio.Event()
        self._executing = 0
        for gate in gates:
            gate.on_turn = self._wake
        self._tasks = [asyncio.create_task(self._serve(index, execute), name="sequences") for index, execute in enumerate(executes)]

    def __repr__(self) -> str:
        return f"<SequenceDispatcher: {self._batcher!r}, {self._executing} of {len(self._tasks)} instances executing>"

    @property
    def pending(self) -> int:
        """Requests that were admitted and are not executing."""
        return len(self._batcher)

    @property
    def depth(self) -> QueueDepth:
        """What waits."""
        return QueueDepth(len(self._batcher), len(self._batcher), self._batcher.waiting_bytes)

    @property
    def sequences(self) -> int:
        """Sequences that are going on or wait for a slot."""
        self._batcher.end_silent(self._clock())
        return self._batcher.sequences

    async def infer(  # noqa: PLR0917 (see SequenceMember)
        self,
        call: SequenceCall,
        inputs: Mapping[str, Array],
        nbytes: int,
        group: Hashable,
        deadline: float | None,
        request: InferRequest | None = None,
    ) -> Execution:
        """Waits for its turn in its sequence, for a place in a batch, and the result.

        Args:
            call: what it says about its sequence.
            inputs: arrays of one row, which nobody changes until this returns.
            nbytes: their size, counted against the queue's limit.
            group: equal for requests that may share a batch.
            deadline: a moment of the clock; None for no limit.
            request: what the inputs came with.

        Raises:
            InvalidArgument: it has no id, or does not begin a sequence that is not going on.
            QueueFull, DeadlineExpired: it was not run. QueueFull says when to try again, and changes nothing about its sequence.
            Cancelled: it was not run because an earlier request of its sequence was not, or because the sequence's stream ended.
            BackendFailed, InvalidArgument: the engine failed or refused the values; the sequence goes on as if it had not come.
            ModelNotReady: the model is going away.
        """
        now = self._clock()
        if self._is_closed:
            raise _unloading()
        if deadline is None:
            deadline = math.inf
        elif deadline <= now:
            raise expired()
        waiter: asyncio.Future[Execution] = self._loop.create_future()
        member = SequenceMember(call, inputs, waiter, nbytes, group, deadline, now, request)
        self._offer(member, now)
        if request and request.stream:
            request.stream.on_end(self._on_stream_end)
        self._feed_soon(now)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._fail_cut(self._batcher.withdraw(member, self._clock()))
            self._feed_soon(now)
            raise

    def stop(self) -> None:
        """Ends sequences as soon as nothing of them waits or runs: no requests come any more, and others wait for their slots."""
        self._is_draining = True
        self._batcher.end_quiet()
        self._wake()

    async def drain(self) -> None:
        """Stops, and waits until nothing is pending or executing. New work is still admitted: whoever drains stops it at the door."""
        self.stop()
        while self._batcher or self._executing:
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        """Refuses new work, fails what is pending, and waits for what is executing; idempotent."""
        self._is_closed = True
        for stream in self._batcher.streams:
            cast("CallerStream", stream).forget(self._on_stream_end)
        for member in self._batcher.clear():
            settle(member.waiter, _unloading())
        if self._timer is not None:
            self._timer.cancel()
        for gate in self._gates:
            gate.close()
        while self._idle:
            self._idle.popitem()[1].set_result([])
        self._tell_drained()
        await asyncio.gather(*self._tasks)

    def _offer(self, member: SequenceMember, now: float) -> None:
        try:
            self._batcher.offer(member)
        except QueueFull:
            # Idle instances take their batches at the end of the loop's turn; what they will take must not count as waiting.
            self._expire(now)
            self._feed(now)
            try:
                self._batcher.offer(member)
            except QueueFull as error:
                hint = len(self._batcher) * self._request_s / max(len(self._tasks), 1)
                raise QueueFull(error.message, retry_after_s=hint) from None
        except GatewayError:
            if self._is_draining:
                # Its sequence may have ended for the drain: the caller did nothing wrong.
                raise _unloading() from None
            raise

    def _feed_soon(self, now: float) -> None:
        """Requests that arrive in one turn of the loop share a batch; without an idle instance there may still be something to time."""
        if self._idle:
            if not self._is_feeding:
                self._is_feeding = True
                self._loop.call_soon(self._on_turn_end)
        elif (end := self._batcher.next_end()) < self._timer_at:
            self._arm(end, now)
        self._tell_drained()

    def _on_turn_end(self) -> None:
        self._is_feeding = False
        self._wake()

    def _on_stream_end(self, stream: CallerStream) -> None:
        now = self._clock()
        self._fail_cut(self._batcher.end_stream(stream, now))
        self._feed_soon(now)

    def _wake(self) -> None:
        now = self._clock()
        self._expire(now)
        self._feed(now)
        # A batch that is due and was not taken waits for a gate, not for a moment.
        batches = (at for index in self._idle if (at := self._batcher.next_batch_at(index)) > now)
        wakeup = min(self._batcher.next_end(), *batches, math.inf)
        if wakeup < self._timer_at:
            self._arm(wakeup, now)
        self._tell_drained()

    def _feed(self, now: float) -> None:
        """Gives batches to idle instances."""
        for index in list(self._idle):
            if batch := self._take(index, now):
                self._idle.pop(index).set_result(batch)

    def _take(self, index: int, now: float) -> list[SequenceMember] | None:
        """A batch for an instance, with the right to execute it; None where nothing is due or its gate is in line."""
        if not self._gates:
            batch = self._batcher.take(index, now)
        elif self._batcher.next_batch_at(index) > now or not self._gates[index].try_acquire():
            return None
        elif not (batch := self._batcher.take(index, now)):
            self._gates[index].release()
        if batch:
            self._executing += 1
        return batch

    def _expire(self, now: float) -> None:
        late, cut = self._batcher.expire(now)
        for member in late:
            settle(member.waiter, expired())
        self._fail_cut(cut)
        self._batcher.end_silent(now)

    def _fail_cut(self, members: Iterable[SequenceMember]) -> None:
        for member in members:
            settle(member.waiter, Cancelled("the sequence is over: an earlier request of it was not run, or its stream ended"))

    def _arm(self, moment: float, now: float) -> None:
        """Sets the one timer. It is left alone when what it was set for goes away: it then fires for nothing and looks further."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(moment - now, _TIMER_STEP_S), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._wake()

    async def _serve(self, index: int, execute: Execute) -> None:
        """The loop of one instance; ends when it is handed an empty batch."""
        while batch := await self._next_batch(index):
            try:
                await self._run(execute, batch)
            finally:
                self._finish(batch)
                if self._gates:
                    self._gates[index].release(has_more=self._batcher.next_batch_at(index) <= self._clock())
            # The members' tensors must not live until the next batch comes.
            del batch
            self._executing -= 1
            self._tell_drained()

    def _finish(self, batch: Sequence[SequenceMember]) -> None:
        """Their sequences go on."""
        now = self._clock()
        for member in batch:
            self._fail_cut(self._batcher.finished(member, now, is_lost=member.is_lost))
        if self._is_draining:
            self._batcher.end_quiet()

    async def _next_batch(self, index: int) -> list[SequenceMember]:
        now = self._clock()
        self._expire(now)
        if batch := self._take(index, now):
            return batch
        if self._is_closed:
            return []
        waiting: asyncio.Future[list[SequenceMember]] = self._loop.create_future()
        self._idle[index] = waiting
        self._wake()
        return await waiting

    async def _run(self, execute: Execute, batch: Sequence[SequenceMember]) -> None:
        """Executes a batch and settles its members."""
        taken = self._clock()
        try:
            result = await execute(batch)
        except Exception as error:  # noqa: BLE001 (whatever a backend raises belongs to the callers, not to this loop)
            compute_s = self._clock() - taken
            self._on_failed(compute_s)
            charge_members(batch, [1] * len(batch), compute_s)
            await self._after_failure(execute, batch, error)
        else:
            self._settle_batch(batch, result, taken)

    async def _after_failure(self, execute: Execute, batch: Sequence[SequenceMember], error: Exception) -> None:
        if len(batch) > 1 and self._runs_again:
            # One by one, so that only the guilty one fails.
            for member in batch:
                await self._run_again(execute, member)
            return
        failure = failure_of(error)
        for member in batch:
            _fail(member, failure)

    async def _run_again(self, execute: Execute, member: SequenceMember) -> None:
        if member.waiter.done():
            member.is_lost = True
        elif member.deadline <= self._clock():
            settle(member.waiter, expired())
            member.is_lost = True
        else:
            await self._run(execute, [member])

    def _settle_batch(self, batch: Sequence[SequenceMember], result: BatchResult, taken: float) -> None:
        size = len(batch)
        self._on_executed(size, result.compute_s)
        charge_members(batch, [1] * size, result.compute_s)
        self._request_s += (result.compute_s / size - self._request_s) * (_ROW_SMOOTHING if self._request_s else 1)
        for member, part in zip(batch, result.parts, strict=True):
            if isinstance(part, GatewayError):
                _fail(member, part)
            else:
                settle(member.waiter, Execution(part, taken - member.arrival, result.compute_s, size))

    def _tell_drained(self) -> None:
        if not (self._executing or self._batcher):
            self._drained.set()


def _fail(member: SequenceMember, failure: GatewayError) -> None:
    # Who has left was not told that its request failed: the sequence has a hole that nobody knows of.
    member.is_lost = member.waiter.done()
    settle(member.waiter, failure)


def _unloading() -> ModelNotReady:
    return ModelNotReady("the model is being unloaded")
