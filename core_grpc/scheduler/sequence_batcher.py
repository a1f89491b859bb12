"""The sequence batcher: which requests of which sequences run together, and on which instance. It decides and does nothing.

A sequence holds a *slot* of one instance from the moment one is free until it ends; before, it waits in the backlog. A *run* of a sequence
is what lies from a request with START to the one with END, or to the next START, which begins it anew. Methods take ``now`` and return
decisions. What is kept true:

* the requests of a sequence run in the order in which they came, never two at once;
* a run never crosses instances, and its slot never changes;
* no two sequences hold one slot; none waits in the backlog while a slot is free; the backlog is served in order;
* a batch is of one instance, has at most one request of a sequence and at most ``max_batch_size`` in all, all of one group (same shapes,
  also of their states), and among them the oldest request that could run there; those of a direct batch are in the order of their slots;
* a request that could run waits at most ``max_queue_delay_s`` while its instance takes; enough of them are due at once;
* a request leaves exactly once: taken, expired, withdrawn, or cut off because an earlier one of its run left without having run: what
  comes behind a hole never runs, and its sequence is over unless a START follows;
* a sequence ends with its END, with its last request cut off, with the stream that began it, or once nothing of it waited or ran for
  ``max_idle_s``, and not before; its slot is free then;
* waiting requests and bytes are bounded; only a request that finds nothing waiting is admitted whatever its size.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import Generic

from core_grpc.errors import QueueFull
from core_grpc.scheduler.live_sequences import LiveSequence, Request, SequenceLimits, SequenceRequest, Strategy
from core_grpc.scheduler.sequences import SequenceId, check_id, not_started

_SLACK = 64
"""Deadlines of requests that left may stay until they outnumber the waiting ones by this."""


class SequenceBatcher(Generic[Request]):
    """See the module's text. ``now``, arrivals, deadlines and wake-ups are moments of one clock, in seconds."""

    def __init__(self, limits: SequenceLimits) -> None:
        self._limits = limits
        self._sequences: dict[SequenceId, LiveSequence[Request]] = {}
        self._backlog: OrderedDict[LiveSequence[Request], None] = OrderedDict()
        self._free = [(slot, instance) for slot in range(limits.slots) for instance in range(limits.instances)]
        """A heap of slots that nobody holds: the lowest first, so that sequences spread over the instances."""
        self._ready: list[dict[int, Request]] = [{} for _ in range(limits.instances)]
        """By instance and ticket: the first request of each sequence that has a slot and runs nothing."""
        self._waiting: dict[int, Request] = {}
        """By ticket."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap of deadlines and tickets."""
        self._silent: OrderedDict[LiveSequence[Request], float] = OrderedDict()
        """Sequences with nothing waiting or running, and since when; the longest silent first."""
        self._by_stream: dict[Hashable, dict[LiveSequence[Request], None]] = {}
        self._last_ticket = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return (
            f"<SequenceBatcher: {self.sequences} sequences, {len(self._backlog)} of them without a slot, {len(self)} requests, "
            f"{self.waiting_bytes} bytes>"
        )

    @property
    def sequences(self) -> int:
        """Sequences that are going on or wait for a slot."""
        return len(self._sequences)

    @property
    def streams(self) -> Iterable[Hashable]:
        """Streams that began a sequence which is going on."""
        return self._by_stream

    def offer(self, request: Request) -> None:
        """Admits a request. Its arrival is now.

        Raises:
            InvalidArgument: it has no id, or does not begin a sequence that is not going on.
            QueueFull: it does not fit beside what waits.
        """
        self.end_silent(request.arrival)
        call = request.call
        check_id(self._limits.model, call.sequence_id)
        sequence = self._sequences.get(call.sequence_id)
        if not call.is_start and not (sequence and sequence.is_open):
            raise not_started(self._limits.model, call.sequence_id, self._limits.max_idle_s)
        self._check_room(request)
        if sequence is None:
            sequence = self._sequences[call.sequence_id] = LiveSequence(call.sequence_id)
            self._backlog[sequence] = None
        self._last_ticket = request.ticket = ticket = self._last_ticket + 1
        request.sequence = sequence
        self._waiting[ticket] = request
        self.waiting_bytes += request.nbytes
        if request.deadline != math.inf:
            heapq.heappush(self._deadlines, (request.deadline, ticket))
        if call.is_start:
            self._own(sequence, request.stream)
        sequence.waiting.append(request)
        sequence.is_open = not call.is_end
        self._go_on(sequence, request.arrival)
        self._assign()

    def take(self, instance: int, now: float) -> list[Request] | None:
        """Takes the next batch for an instance; None when nothing is due. Deadlines are not looked at: call ``expire`` first.

        Give each of them to ``finished`` once it has run.
        """
        requests = self._next(instance)
        if not requests or self._due_at(requests) > now:
            return None
        batch = requests[: self._limits.max_batch_size]
        for request in batch:
            del self._ready[instance][request.ticket]
            request.sequence.waiting.popleft()
            request.sequence.executing = request
            self._forget(request)
        if self._limits.strategy is Strategy.DIRECT:
            batch.sort(key=_slot)
        return batch

    def finished(self, request: Request, now: float, *, is_lost: bool = False) -> list[Request]:
        """A request that was taken is done; ``is_lost`` where nobody knows that it ran. Returns what was cut off for that."""
        sequence: LiveSequence[Request] = request.sequence
        sequence.executing = None
        cut = self._cut(sequence, 0, _next_start(sequence, 0)) if is_lost else []
        if request.call.is_end:
            self._release(sequence)
        else:
            self._go_on(sequence, now)
        self._assign()
        return cut

    def withdraw(self, request: Request, now: float) -> list[Request]:
        """Takes a request out because its caller left; nothing where it does not wait. Returns what was cut off for that."""
        if self._waiting.get(request.ticket) is not request:
            return []
        cut = self._drop(request, now)
        self._assign()
        return cut

    def expire(self, now: float) -> tuple[list[Request], list[Request]]:
        """Takes out the requests whose deadline is not after ``now``, earliest deadline first; and what was cut off for that."""
        heap, expired, cut = self._deadlines, [], []
        while heap and heap[0][0] <= now:
            request = self._waiting.get(heapq.heappop(heap)[1])
            if request is not None:
                cut += self._drop(request, now)
                expired.append(request)
        if expired:
            self._assign()
        return expired, cut

    def end_silent(self, now: float) -> None:
        """Ends the sequences that were silent for ``max_idle_s``."""
        while self._silent:
            sequence, since = next(iter(self._silent.items()))
            if now < since + self._limits.max_idle_s:
                break
            self._release(sequence)
        self._assign()

    def end_stream(self, stream: Hashable, now: float) -> list[Request]:
        """Ends the sequences that a stream began; returns what was cut off for that."""
        cut: list[Request] = []
        for sequence in self._by_stream.pop(stream, ()):
            starts = [index for index, request in enumerate(sequence.waiting) if request.call.is_start]
            cut += self._cut(sequence, starts[-1] if starts else 0, len(sequence.waiting))
            sequence.stream = None
            self._go_on(sequence, now)
        self._assign()
        return cut

    def end_quiet(self) -> None:
        """Ends every sequence of which nothing waits or runs: for a model that gets no more requests."""
        for sequence in list(self._silent):
            self._release(sequence)
        self._assign()

    def clear(self) -> list[Request]:
        """Takes every waiting request out, oldest first, and ends all sequences."""
        requests = list(self._waiting.values())
        for sequence in list(self._sequences.values()):
            self._cut(sequence, 0, len(sequence.waiting))
            self._go_on(sequence, -math.inf)
        return requests

    def next_batch_at(self, instance: int) -> float:
        """The moment from which ``take`` gives the instance a batch, if nothing changes; infinite for never, -infinite for at once."""
        requests = self._next(instance)
        return self._due_at(requests) if requests else math.inf

    def next_end(self) -> float:
        """The moment from which ``expire`` or ``end_silent`` does something, if nothing changes; infinite for never."""
        heap = self._deadlines
        while heap and heap[0][1] not in self._waiting:
            heapq.heappop(heap)
        moments = [heap[0][0]] if heap else []
        if self._silent:
            moments.append(next(iter(self._silent.values())) + self._limits.max_idle_s)
        return min(moments, default=math.inf)

    def _check_room(self, request: Request) -> None:
        limits = self._limits
        if not self._waiting:
            return
        if len(self._waiting) >= limits.max_queue_requests:
            raise QueueFull(
                f"too many requests are waiting: {len(self._waiting)} and 1 more exceed the limit of {limits.max_queue_requests} "
                f"({len(self._backlog)} sequences wait for one of {limits.slots * limits.instances} slots)"
            )
        if self.waiting_bytes + request.nbytes > limits.max_queue_bytes:
            raise QueueFull(
                f"too many bytes are waiting: {self.waiting_bytes} and {request.nbytes} more "
                f"exceed max_queue_bytes {limits.max_queue_bytes}"
            )

    def _own(self, sequence: LiveSequence[Request], stream: Hashable) -> None:
        """Notes who began it; as the last START says."""
        if sequence.stream is not None:
            owned = self._by_stream[sequence.stream]
            owned.pop(sequence, None)
            if not owned:
                del self._by_stream[sequence.stream]
        sequence.stream = stream
        if stream is not None:
            self._by_stream.setdefault(stream, {})[sequence] = None

    def _next(self, instance: int) -> list[Request]:
        """The requests that could run there in one batch, the oldest first."""
        ready = self._ready[instance]
        if not ready:
            return []
        requests = [ready[ticket] for ticket in sorted(ready)]
        group = _group(requests[0])
        return [request for request in requests if _group(request) == group]

    def _due_at(self, requests: list[Request]) -> float:
        """The moment from which they run, if nothing changes."""
        if len(requests) >= self._limits.enough or not self._limits.max_queue_delay_s:
            return -math.inf
        return requests[0].arrival + self._limits.max_queue_delay_s

    def _forget(self, request: Request) -> None:
        """It waits no longer. Its entry in the heap is skipped when it surfaces, and swept when such entries are many."""
        del self._waiting[request.ticket]
        self.waiting_bytes -= request.nbytes
        if len(self._deadlines) > 2 * len(self._waiting) + _SLACK:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)

    def _drop(self, request: Request, now: float) -> list[Request]:
        """Takes out a waiting request, and what comes behind it in its run, which is returned."""
        sequence: LiveSequence[Request] = request.sequence
        index = sequence.waiting.index(request)
        del sequence.waiting[index]
        self._unready(sequence, request)
        self._forget(request)
        cut = self._cut(sequence, index, _next_start(sequence, index))
        self._go_on(sequence, now)
        return cut

    def _cut(self, sequence: LiveSequence[Request], start: int, end: int) -> list[Request]:
        """Takes out what waits from ``start`` to before ``end``; where that was the last of it, only a START may follow."""
        waiting = list(sequence.waiting)
        cut = waiting[start:end]
        for request in cut:
            self._unready(sequence, request)
            self._forget(request)
        sequence.waiting = deque(waiting[:start] + waiting[end:])
        if end == len(waiting):
            sequence.is_open = False
        return cut

    def _unready(self, sequence: LiveSequence[Request], request: Request) -> None:
        if sequence.instance >= 0:
            self._ready[sequence.instance].pop(request.ticket, None)

    def _go_on(self, sequence: LiveSequence[Request], now: float) -> None:
        """Puts a sequence where it belongs after something of it came or left."""
        self._silent.pop(sequence, None)
        if sequence.executing is not None:
            return
        if sequence.waiting:
            if sequence.instance >= 0:
                first = sequence.waiting[0]
                self._ready[sequence.instance][first.ticket] = first
        elif sequence.is_open:
            self._silent[sequence] = now
        else:
            self._release(sequence)

    def _release(self, sequence: LiveSequence[Request]) -> None:
        """Frees its slot. Where the same id begins again already, it stands at the end of the backlog; else it is gone."""
        self._silent.pop(sequence, None)
        if sequence.instance >= 0:
            heapq.heappush(self._free, (sequence.slot, sequence.instance))
            sequence.instance = sequence.slot = -1
        sequence.state = sequence.state_group = None
        if sequence.waiting:
            self._backlog[sequence] = None
        else:
            self._backlog.pop(sequence, None)
            self._own(sequence, None)
            del self._sequences[sequence.sequence_id]

    def _assign(self) -> None:
        """Gives free slots to the backlog."""
        while self._free and self._backlog:
            sequence, _ = self._backlog.popitem(last=False)
            sequence.slot, sequence.instance = heapq.heappop(self._free)
            first = sequence.waiting[0]
            self._ready[sequence.instance][first.ticket] = first


def _group(request: SequenceRequest) -> Hashable:
    return (request.group, None if request.call.is_start else request.sequence.state_group)


def _slot(request: SequenceRequest) -> int:
    return request.sequence.slot


def _next_start(sequence: LiveSequence[Request], index: int) -> int:
    """Where the next run begins among what waits, from ``index`` on; its end where there is none."""
    return next((i for i in range(index, len(sequence.waiting)) if sequence.waiting[i].call.is_start), len(sequence.waiting))
