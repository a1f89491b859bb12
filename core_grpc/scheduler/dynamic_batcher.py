"""The dynamic batcher: a queue that turns waiting requests into batches. It decides and does nothing: no clock, no asyncio, no engine.

Methods take ``now`` and return decisions. What the queue keeps true:

* a batch holds requests of one *group* only (same shapes beyond the batch dimension), at most ``max_batch_size`` rows, in order of arrival;
  a request that does not fit the rest of a batch stays, and so does everything of its group behind it;
* the oldest request waits at most ``max_queue_delay_s`` while somebody takes; a batch that cannot grow is due at once;
* a request leaves exactly once: taken, expired or withdrawn;
* waiting rows and bytes are bounded; only a request that finds the queue empty is admitted whatever its size.

Each operation costs a few dictionary steps, whatever the number of requests and groups: queues and the heap of deadlines hold tickets
(numbers), those of requests that left are skipped when they surface and swept when they are many, and no request is kept alive by one.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from core_grpc.errors import InvalidArgument, QueueFull

_SLACK = 64
"""Tickets of requests that left may stay until they outnumber the waiting ones by this."""


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


class Pending:
    """What the batcher knows of a request. Users derive from it and add what they need."""

    __slots__ = ("arrival", "deadline", "group", "nbytes", "rows", "ticket")

    def __init__(self, rows: int, nbytes: int, group: Hashable, deadline: float, arrival: float) -> None:
        self.rows = rows
        self.nbytes = nbytes
        """Counted against the queue's limit."""
        self.group = group
        """Equal for requests that may share a batch."""
        self.deadline = deadline
        """Infinite for none."""
        self.arrival = arrival
        self.ticket = 0
        """The batcher's."""


Request = TypeVar("Request", bound=Pending)


class _Group:
    """The waiting requests that may share a batch."""

    __slots__ = ("rows", "tickets")

    def __init__(self) -> None:
        self.tickets: deque[int] = deque()
        self.rows = 0


class DynamicBatcher(Generic[Request]):
    """See the module's text. ``now``, arrivals, deadlines and wake-ups are moments of one clock, in seconds."""

    def __init__(self, limits: BatchingLimits) -> None:
        self._limits = limits
        self._batch_rows = max(limits.max_batch_size, 1)
        self._pending: OrderedDict[int, Request] = OrderedDict()
        """By ticket, in order of arrival. (A plain dict would look for its first entry among all that left before it.)"""
        self._groups: dict[Hashable, _Group] = {}
        self._full: dict[Hashable, None] = {}
        """Groups with a whole batch waiting, in the order in which they filled up."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap of deadlines and tickets."""
        self._dead = 0
        """Tickets in group queues whose requests were withdrawn or expired."""
        self._last_ticket = 0
        self.waiting_rows = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __repr__(self) -> str:
        return f"<DynamicBatcher: {len(self)} requests, {self.waiting_rows} rows, {self.waiting_bytes} bytes in {len(self._groups)} groups>"

    def offer(self, request: Request) -> None:
        """Puts a request at the end of the queue. Its arrival must not be before that of the one offered last.

        Raises:
            QueueFull: it does not fit beside what waits.
            InvalidArgument: it does not fit any batch.
        """
        rows = request.rows
        if rows > self._batch_rows:
            raise InvalidArgument(f"batch {rows} is above the model's max {self._batch_rows}")
        if self._pending:
            self._check_room(rows, request.nbytes)
        self._last_ticket = request.ticket = ticket = self._last_ticket + 1
        self._pending[ticket] = request
        self.waiting_rows += rows
        self.waiting_bytes += request.nbytes
        group = self._groups.get(request.group)
        if group is None:
            group = self._groups[request.group] = _Group()
        group.tickets.append(ticket)
        group.rows += rows
        if group.rows >= self._batch_rows:
            self._full[request.group] = None
        if request.deadline != math.inf:
            heapq.heappush(self._deadlines, (request.deadline, ticket))

    def withdraw(self, request: Request) -> bool:
        """Takes a request out because its caller left; whether it was waiting."""
        if self._pending.get(request.ticket) is not request:
            return False
        self._discard(request)
        self._sweep()
        return True

    def clear(self) -> list[Request]:
        """Takes everything out, oldest first."""
        requests = list(self._pending.values())
        for request in requests:
            self._discard(request)
        self._sweep()
        return requests

    def expire(self, now: float) -> list[Request]:
        """Takes out the requests whose deadline is not after ``now``, earliest deadline first."""
        heap = self._deadlines
        expired: list[Request] = []
        while heap and heap[0][0] <= now:
            request = self._pending.get(heapq.heappop(heap)[1])
            if request is not None:
                self._discard(request)
                expired.append(request)
        if expired:
            self._sweep()
        return expired

    def take(self, now: float) -> list[Request] | None:
        """Takes the next batch, oldest request first; None when nothing is due.

        A group whose oldest request has waited long enough comes first, so that full batches of one group do not starve another.
        Deadlines are not looked at: call ``expire`` first.
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
        while heap and heap[0][1] not in self._pending:
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

    def _take_from(self, name: Hashable) -> list[Request]:
        group = self._groups[name]
        tickets, pending = group.tickets, self._pending
        room = self._batch_rows
        batch: list[Request] = []
        while tickets:
            request = pending.get(tickets[0])
            if request is None:
                self._dead -= 1
            elif request.rows > room:
                break
            else:
                room -= request.rows
                del pending[request.ticket]
                self.waiting_bytes -= request.nbytes
                batch.append(request)
            tickets.popleft()
        rows = self._batch_rows - room
        self.waiting_rows -= rows
        self._shrink(name, group, rows)
        self._sweep()
        return batch

    def _discard(self, request: Request) -> None:
        """Takes a request out from the middle; its tickets stay behind."""
        del self._pending[request.ticket]
        self.waiting_rows -= request.rows
        self.waiting_bytes -= request.nbytes
        self._dead += 1
        self._shrink(request.group, self._groups[request.group], request.rows)

    def _shrink(self, name: Hashable, group: _Group, rows: int) -> None:
        group.rows -= rows
        if group.rows < self._batch_rows:
            self._full.pop(name, None)
            if not group.rows:
                self._dead -= len(group.tickets)
                del self._groups[name]

    def _sweep(self) -> None:
        """Drops tickets of requests that left, once they are most of what is kept: a constant cost for each request."""
        pending = self._pending
        most = 2 * len(pending) + _SLACK
        if len(self._deadlines) > most:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in pending]
            heapq.heapify(self._deadlines)
        if self._dead > len(pending) + _SLACK:
            self._dead = 0
            for group in self._groups.values():
                group.tickets = deque(ticket for ticket in group.tickets if ticket in pending)
