"""The dynamic batcher: a queue that turns waiting requests into batches. It decides and does nothing: no clock, no asyncio, no engine.

Methods take ``now`` and return decisions. What the queue keeps true:

* a batch holds requests of one *group* only (same shapes beyond the batch dimension), at most ``max_batch_size`` rows, the more important
  first and in order of arrival among equals; a request that does not fit the rest of a batch stays, and so does what stands behind it;
* no batch leaves without the group of the most important request that waits, the oldest one among equals, once that has waited long enough;
* the oldest request waits at most ``max_queue_delay_s`` while somebody takes; a batch of a preferred size, and one that cannot grow, is due
  at once;
* a request that may be delayed and has waited too long stands behind all others of its level;
* a request leaves exactly once: taken, expired, withdrawn or displaced;
* waiting requests, rows and bytes are bounded; only a request that finds the queue empty is admitted whatever its size; a more important
  one may displace less important ones, the newest first, and never more than it needs.

Each operation costs a few dictionary steps, whatever the number of requests and groups: queues and the heap of deadlines hold tickets
(numbers), those of requests that left are skipped when they surface and swept when they are many, and no request is kept alive by one.
"""

from __future__ import annotations

import bisect
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
    preferred_batch_sizes: tuple[int, ...] = ()
    """Ascending rows that a batch need not outgrow; the largest batch when empty."""
    level_max_requests: tuple[int, ...] = (0,)
    """For each level of importance, the most important first, how many of its requests may wait; 0 for no limit of their own."""
    delays: bool = False
    """Whether requests may have a ``delay_at``."""


class Pending:
    """What the batcher knows of a request. Users derive from it and add what they need."""

    __slots__ = ("arrival", "deadline", "delay_at", "group", "lane", "level", "nbytes", "rows", "ticket")

    def __init__(  # noqa: PLR0917 (made for every request)
        self,
        rows: int,
        nbytes: int,
        group: Hashable,
        deadline: float,
        arrival: float,
        level: int = 0,
        delay_at: float = math.inf,
    ) -> None:
        self.rows = rows
        self.nbytes = nbytes
        """Counted against the queue's limit."""
        self.group = group
        """Equal for requests that may share a batch."""
        self.deadline = deadline
        """Infinite for none."""
        self.arrival = arrival
        self.level = level
        """0 is the most important."""
        self.delay_at = delay_at
        """The moment from which it stands behind the others of its level; infinite for never."""
        self.lane = 0
        """The batcher's, as ``ticket``."""
        self.ticket = 0


Request = TypeVar("Request", bound=Pending)


class _Group:
    """The waiting requests that may share a batch."""

    __slots__ = ("lanes", "rows")

    def __init__(self, lanes: int) -> None:
        self.lanes: list[deque[int]] = [deque() for _ in range(lanes)]
        """Tickets, by lane."""
        self.rows = 0


class DynamicBatcher(Generic[Request]):
    """See the module's text. ``now``, arrivals, deadlines and wake-ups are moments of one clock, in seconds.

    A *lane* holds what is equally important: a level's requests, and behind them, where requests may be delayed, its delayed ones.
    """

    def __init__(self, limits: BatchingLimits) -> None:
        self._limits = limits
        self._batch_rows = max(limits.max_batch_size, 1)
        self._sizes = limits.preferred_batch_sizes or (self._batch_rows,)
        self._lanes_per_level = 2 if limits.delays else 1
        lanes = len(limits.level_max_requests) * self._lanes_per_level
        self._pending: OrderedDict[int, Request] = OrderedDict()
        """By ticket, in order of arrival. (A plain dict would look for its first entry among all that left before it.)"""
        self._lanes: list[OrderedDict[int, Request]] = [self._pending] if lanes == 1 else [OrderedDict() for _ in range(lanes)]
        """``_pending`` by lane, delayed ones in the order in which they were delayed."""
        self._has_lanes = lanes > 1
        self._groups: dict[Hashable, _Group] = {}
        self._ready: dict[Hashable, None] = {}
        """Groups with a batch of a preferred size waiting, in the order in which they came to have it."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap of deadlines and tickets."""
        self._delays: list[tuple[float, int]] = []
        """As ``_deadlines``, of the moments from which requests are delayed."""
        self._dead = 0
        """Tickets in group queues whose requests left in another way than by a batch."""
        self._last_ticket = 0
        self.waiting_rows = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __repr__(self) -> str:
        return f"<DynamicBatcher: {len(self)} requests, {self.waiting_rows} rows, {self.waiting_bytes} bytes in {len(self._groups)} groups>"

    def offer(self, request: Request) -> None:
        """Puts a request at the end of its level's queue. Its arrival must not be before that of the one offered last.

        Raises:
            QueueFull: it does not fit beside what waits.
            InvalidArgument: it does not fit any batch.
        """
        rows = request.rows
        if rows > self._batch_rows:
            raise InvalidArgument(f"batch {rows} is above the model's max {self._batch_rows}")
        if self._pending:
            self._check_room(request)
        request.lane = request.level * self._lanes_per_level
        self._put(request)
        if request.delay_at != math.inf:
            heapq.heappush(self._delays, (request.delay_at, request.ticket))

    def displace_for(self, request: Request) -> list[Request]:
        """Takes out less important requests, the least important and newest first, so that ``request`` fits; no more than it takes.

        Raises:
            QueueFull: it would not fit all the same; nothing was taken out then.
        """
        rows, nbytes = self.waiting_rows + request.rows, self.waiting_bytes + request.nbytes
        displaced: list[Request] = []
        lowest = (request.level + 1) * self._lanes_per_level
        candidates = (other for lane in reversed(self._lanes[lowest:]) for other in reversed(lane.values()))
        while rows > self._limits.max_queue_rows or nbytes > self._limits.max_queue_bytes:
            other = next(candidates, None)
            if other is None:
                break
            displaced.append(other)
            rows -= other.rows
            nbytes -= other.nbytes
        if len(displaced) < len(self._pending):
            self._check_room(request, rows - request.rows, nbytes - request.nbytes)
        for other in displaced:
            self._discard(other)
        self._sweep()
        return displaced

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
        """Takes the next batch; None when nothing is due.

        It is of the group of the first request (the oldest of the most important) where some request has waited long enough, so that
        whole batches of one group do not starve another. Before that it is of a group that has a batch of a preferred size, unless
        what waits elsewhere is more important than all of it. Deadlines are not looked at: call ``expire`` first.
        """
        if not self._pending:
            return None
        if self._delays:
            self._delay(now)
        if now >= self._due_at():
            group = self._first().group
            return self._take_from(group, self._batch_rows if self._limits.max_queue_delay_s else self._size_for(group))
        if self._ready:
            group = self._ready_group()
            return self._take_from(group, self._size_for(group))
        return None

    def next_batch_at(self) -> float:
        """The moment from which ``take`` gives a batch, if nothing changes; infinite for an empty queue, -infinite for at once."""
        if not self._pending:
            return math.inf
        return -math.inf if self._ready else self._due_at()

    def next_deadline(self) -> float:
        """The moment from which ``expire`` gives something, if nothing changes; infinite for never."""
        heap = self._deadlines
        while heap and heap[0][1] not in self._pending:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def next_wakeup(self) -> float:
        """The next moment at which ``expire`` or ``take`` gives something, if nothing changes."""
        return min(self.next_batch_at(), self.next_deadline())

    def _put(self, request: Request) -> None:
        """Puts a request at the end of its lane."""
        self._last_ticket = request.ticket = ticket = self._last_ticket + 1
        self._pending[ticket] = request
        if self._has_lanes:
            self._lanes[request.lane][ticket] = request
        self.waiting_rows += request.rows
        self.waiting_bytes += request.nbytes
        group = self._groups.get(request.group)
        if group is None:
            group = self._groups[request.group] = _Group(len(self._lanes))
        group.lanes[request.lane].append(ticket)
        group.rows += request.rows
        if group.rows >= self._sizes[0]:
            self._ready[request.group] = None
        if request.deadline != math.inf:
            heapq.heappush(self._deadlines, (request.deadline, ticket))

    def _delay(self, now: float) -> None:
        """Moves what has waited too long behind the others of its level. It comes last in order of arrival then, under a new ticket."""
        heap = self._delays
        while heap and heap[0][0] <= now:
            request = self._pending.get(heapq.heappop(heap)[1])
            if request is not None:
                self._discard(request)
                request.lane += 1
                self._put(request)

    def _check_room(self, request: Request, waiting_rows: int | None = None, waiting_bytes: int | None = None) -> None:
        """Whether ``request`` fits beside so much, or beside what waits."""
        limits = self._limits
        rows = self.waiting_rows if waiting_rows is None else waiting_rows
        nbytes = self.waiting_bytes if waiting_bytes is None else waiting_bytes
        if rows + request.rows > limits.max_queue_rows:
            raise QueueFull(f"too many rows are waiting: {rows} and {request.rows} more exceed max_queue_rows {limits.max_queue_rows}")
        if nbytes + request.nbytes > limits.max_queue_bytes:
            raise QueueFull(
                f"too many bytes are waiting: {nbytes} and {request.nbytes} more exceed max_queue_bytes {limits.max_queue_bytes}"
            )
        if (most := limits.level_max_requests[request.level]) and (waiting := self._waiting_of(request.level)) >= most:
            of_level = f" of priority {request.level + 1}" if len(limits.level_max_requests) > 1 else ""
            raise QueueFull(f"too many requests{of_level} are waiting: {waiting} and 1 more exceed max_requests {most}")

    def _waiting_of(self, level: int) -> int:
        first = level * self._lanes_per_level
        return sum(map(len, self._lanes[first : first + self._lanes_per_level]))

    def _first(self) -> Request:
        """The oldest of the most important requests; there must be one."""
        return next(iter(next(lane for lane in self._lanes if lane).values()))

    def _due_at(self) -> float:
        """The moment from which what waits runs in a batch of any size."""
        return next(iter(self._pending.values())).arrival + self._limits.max_queue_delay_s

    def _ready_group(self) -> Hashable:
        """The first group with a batch of a preferred size, or that of the first request where that is more important than all of it."""
        ready = next(iter(self._ready))
        if self._has_lanes:
            first = self._first()
            if self._first_lane(self._groups[ready]) > first.lane:
                return first.group
        return ready

    def _first_lane(self, group: _Group) -> int:
        """The lane of the group's most important request."""
        for lane, tickets in enumerate(group.lanes):
            while tickets and tickets[0] not in self._pending:
                tickets.popleft()
                self._dead -= 1
            if tickets:
                return lane
        return len(group.lanes)

    def _size_for(self, group: Hashable) -> int:
        """The largest preferred size that the group's rows reach; the largest batch when they reach none."""
        rows = self._groups[group].rows
        index = bisect.bisect_right(self._sizes, rows)
        return self._sizes[index - 1] if index else self._batch_rows

    def _take_from(self, name: Hashable, size: int) -> list[Request]:
        """As many of the group's first requests as fit into ``size`` rows, and at least one."""
        group = self._groups[name]
        batch: list[Request] = []
        rows = 0
        for tickets in group.lanes:
            rows = self._take_lane(tickets, batch, rows, size)
            if tickets:
                break
        self.waiting_rows -= rows
        self._shrink(name, group, rows)
        self._sweep()
        return batch

    def _take_lane(self, tickets: deque[int], batch: list[Request], rows: int, size: int) -> int:
        """Moves a lane's first requests to the batch; what the batch's rows are then. What is left in the lane did not fit."""
        pending = self._pending
        while tickets:
            request = pending.get(tickets[0])
            if request is None:
                self._dead -= 1
            elif rows + request.rows > size and batch:
                break
            else:
                rows += request.rows
                del pending[request.ticket]
                if self._has_lanes:
                    del self._lanes[request.lane][request.ticket]
                self.waiting_bytes -= request.nbytes
                batch.append(request)
            tickets.popleft()
        return rows

    def _discard(self, request: Request) -> None:
        """Takes a request out from the middle; its tickets stay behind."""
        del self._pending[request.ticket]
        if self._has_lanes:
            del self._lanes[request.lane][request.ticket]
        self.waiting_bytes -= request.nbytes
        self.waiting_rows -= request.rows
        self._dead += 1
        self._shrink(request.group, self._groups[request.group], request.rows)

    def _shrink(self, name: Hashable, group: _Group, rows: int) -> None:
        group.rows -= rows
        if group.rows < self._sizes[0]:
            self._ready.pop(name, None)
            if not group.rows:
                self._dead -= sum(map(len, group.lanes))
                del self._groups[name]

    def _sweep(self) -> None:
        """Drops tickets of requests that left, once they are most of what is kept: a constant cost for each request."""
        pending = self._pending
        most = 2 * len(pending) + _SLACK
        for heap in (self._deadlines, self._delays):
            if len(heap) > most:
                heap[:] = [entry for entry in heap if entry[1] in pending]
                heapq.heapify(heap)
        if self._dead > len(pending) + _SLACK:
            self._dead = 0
            for group in self._groups.values():
                group.lanes = [deque(ticket for ticket in lane if ticket in pending) for lane in group.lanes]
