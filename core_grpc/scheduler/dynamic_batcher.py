"""The dynamic batcher: a queue that turns waiting requests into batches. It decides and does nothing: no clock, no asyncio, no engine.

Requests are keys with a size; methods take ``now`` and return decisions. What the queue keeps true:

* a batch holds requests of one *group* only (same shapes beyond the batch dimension), at most ``max_batch_size`` rows, in order of arrival;
  a request that does not fit the rest of a batch stays, and so does everything of its group behind it;
* the oldest request waits at most ``max_queue_delay_s`` while somebody takes; a batch that cannot grow is due at once;
* a key leaves exactly once: taken, expired or withdrawn;
* waiting rows and bytes are bounded; only a request that finds the queue empty is admitted whatever its size.

Each operation costs a few dictionary steps, whatever the number of requests and groups.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from core_grpc.errors import InvalidArgument, QueueFull

Key = TypeVar("Key", bound=Hashable)

_HEAP_SLACK = 64
"""Entries of requests that left may stay in the heap of deadlines until they outnumber the waiting ones by this."""


@dataclass(frozen=True, slots=True)
class BatchingLimits:
    """How large a batch and the queue may become."""

    max_batch_size: int
    """Rows; 0 where requests have no batch dimension: each is a batch of its own, and counts as one row."""
    max_queue_delay_s: float
    """How long the oldest request may be held back for a fuller batch."""
    max_queue_rows: int
    """Rows that may wait."""
    max_queue_bytes: int
    """Bytes of input that may wait."""


class _Pending(Generic[Key]):
    """A request in the queue."""

    __slots__ = ("arrival", "deadline", "group", "key", "nbytes", "rows")

    def __init__(self, key: Key, rows: int, nbytes: int, group: Hashable, *, deadline: float, arrival: float) -> None:
        self.key = key
        self.rows = rows
        self.nbytes = nbytes
        self.group = group
        self.deadline = deadline
        self.arrival = arrival


class _Group(Generic[Key]):
    """The waiting requests that may share a batch, oldest first."""

    __slots__ = ("rows", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[Key, _Pending[Key]] = OrderedDict()
        self.rows = 0


class DynamicBatcher(Generic[Key]):
    """See the module's text. ``now``, deadlines and wake-ups are moments of one clock, in seconds."""

    def __init__(self, limits: BatchingLimits) -> None:
        self._limits = limits
        self._batch_rows = max(limits.max_batch_size, 1)
        self._pending: OrderedDict[Key, _Pending[Key]] = OrderedDict()
        self._groups: dict[Hashable, _Group[Key]] = {}
        self._full: dict[Hashable, None] = {}
        """Groups with a whole batch waiting, in the order in which they filled up."""
        self._deadlines: list[tuple[float, int, _Pending[Key]]] = []
        """A heap. Entries of requests that left are skipped when they surface, and swept when they are many."""
        self._offers = 0
        self.waiting_rows = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __repr__(self) -> str:
        return f"<DynamicBatcher: {len(self)} requests, {self.waiting_rows} rows, {self.waiting_bytes} bytes in {len(self._groups)} groups>"

    def offer(self, key: Key, rows: int, nbytes: int, group: Hashable, *, deadline: float | None, now: float) -> None:
        """Puts a request at the end of the queue. ``key`` must not be waiting already.

        Raises:
            QueueFull: it does not fit beside what waits.
            InvalidArgument: it does not fit any batch.
        """
        if rows > self._batch_rows:
            raise InvalidArgument(f"batch {rows} is above the model's max {self._batch_rows}")
        if self._pending:
            self._check_room(rows, nbytes)
        moment = math.inf if deadline is None else deadline
        pending = _Pending(key, rows, nbytes, group, deadline=moment, arrival=now)
        self._pending[key] = pending
        self.waiting_rows += rows
        self.waiting_bytes += nbytes
        mates = self._groups.get(group)
        if mates is None:
            mates = self._groups[group] = _Group()
        mates.waiting[key] = pending
        mates.rows += rows
        if mates.rows >= self._batch_rows:
            self._full[group] = None
        if deadline is not None:
            self._offers += 1
            heapq.heappush(self._deadlines, (deadline, self._offers, pending))

    def withdraw(self, key: Key) -> bool:
        """Takes a request out because its caller left; whether it was waiting."""
        pending = self._pending.get(key)
        if pending is None:
            return False
        self._remove(pending)
        self._sweep()
        return True

    def clear(self) -> list[Key]:
        """Takes everything out, oldest first."""
        keys = list(self._pending)
        for pending in list(self._pending.values()):
            self._remove(pending)
        self._sweep()
        return keys

    def expire(self, now: float) -> list[Key]:
        """Takes out the requests whose deadline is not after ``now``, earliest deadline first."""
        expired: list[Key] = []
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            pending = heapq.heappop(heap)[2]
            if self._is_waiting(pending):
                self._remove(pending)
                expired.append(pending.key)
        return expired

    def take(self, now: float) -> list[Key] | None:
        """Takes the next batch, oldest request first; None when nothing is due.

        A group whose oldest request has waited long enough comes first, so that full batches of one group do not starve another.
        Requests whose deadline has passed are not looked at: call ``expire`` first.
        """
        if not self._pending:
            return None
        oldest = next(iter(self._pending.values()))
        if now >= oldest.arrival + self._limits.max_queue_delay_s:
            return self._take_from(oldest.group)
        if self._full:
            return self._take_from(next(iter(self._full)))
        return None

    def next_batch_at(self) -> float:
        """The moment from which ``take`` gives a batch, if nothing changes; infinite for an empty queue, -infinite for at once."""
        if not self._pending:
            return math.inf
        if self._full:
            return -math.inf
        return next(iter(self._pending.values())).arrival + self._limits.max_queue_delay_s

    def next_deadline(self) -> float:
        """The moment from which ``expire`` gives something, if nothing changes; infinite for never."""
        heap = self._deadlines
        while heap and not self._is_waiting(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def next_wakeup(self) -> float:
        """The next moment at which ``expire`` or ``take`` gives something, if nothing changes."""
        return min(self.next_batch_at(), self.next_deadline())

    def _check_room(self, rows: int, nbytes: int) -> None:
        limits = self._limits
        if self.waiting_rows + rows > limits.max_queue_rows:
            raise QueueFull(f"too many rows are waiting: {self.waiting_rows} and {rows} more exceed max_queue_rows {limits.max_queue_rows}")
        if self.waiting_bytes + nbytes > limits.max_queue_bytes:
            raise QueueFull(
                f"too many bytes are waiting: {self.waiting_bytes} and {nbytes} more exceed max_queue_bytes {limits.max_queue_bytes}"
            )

    def _is_waiting(self, pending: _Pending[Key]) -> bool:
        return self._pending.get(pending.key) is pending

    def _take_from(self, group: Hashable) -> list[Key]:
        mates = self._groups[group]
        room = self._batch_rows
        batch: list[Key] = []
        for pending in mates.waiting.values():
            room -= pending.rows
            if room < 0:
                break
            batch.append(pending.key)
        for key in batch:
            self._remove(mates.waiting[key])
        self._sweep()
        return batch

    def _remove(self, pending: _Pending[Key]) -> None:
        del self._pending[pending.key]
        self.waiting_rows -= pending.rows
        self.waiting_bytes -= pending.nbytes
        group = pending.group
        mates = self._groups[group]
        del mates.waiting[pending.key]
        mates.rows -= pending.rows
        if mates.rows < self._batch_rows:
            self._full.pop(group, None)
        if not mates.waiting:
            del self._groups[group]

    def _sweep(self) -> None:
        """Drops the deadlines of requests that left, once they are most of the heap: a constant cost for each request."""
        if len(self._deadlines) > 2 * len(self._pending) + _HEAP_SLACK:
            self._deadlines = [entry for entry in self._deadlines if self._is_waiting(entry[2])]
            heapq.heapify(self._deadlines)
