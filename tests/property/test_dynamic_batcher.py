"""The dynamic batcher against a model that is a plain dict: whatever happens in whatever order, its promises hold after each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.errors import InvalidArgument, QueueFull
from core_grpc.scheduler.dynamic_batcher import BatchingLimits, DynamicBatcher, Pending


class BatcherMachine(RuleBasedStateMachine):
    """Offers, withdrawals, expiry, displacement, takes and the passing of time."""

    @initialize(
        max_batch_size=st.integers(0, 5),
        delay=st.sampled_from([0.0, 1.0, 5.0]),
        rows=st.integers(1, 30),
        nbytes=st.integers(1, 3000),
        preferred=st.sets(st.integers(1, 5)),
        levels=st.lists(st.sampled_from([0, 0, 1, 3]), min_size=1, max_size=3),
        delays=st.booleans(),
    )
    def begin(  # noqa: PLR0917
        self, max_batch_size: int, delay: float, rows: int, nbytes: int, preferred: set[int], levels: list[int], delays: bool
    ) -> None:
        sizes = tuple(sorted(size for size in preferred if size <= max_batch_size))
        self.limits = BatchingLimits(max_batch_size, delay, rows, nbytes, sizes, tuple(levels), delays)
        self.batcher: DynamicBatcher[Pending] = DynamicBatcher(self.limits)
        self.live: dict[int, Pending] = {}
        """In order of arrival; what was delayed is at the end, in the order in which that was seen."""
        self.delayed: set[int] = set()
        self.left: set[int] = set()
        self.now = 0.0

    @property
    def most_rows(self) -> int:
        return max(self.limits.max_batch_size, 1)

    @rule(
        rows=st.integers(1, 6),
        nbytes=st.integers(0, 200),
        group=st.sampled_from("abc"),
        patience=st.sampled_from([0.0, 0.5, 3.0, math.inf]),
        level=st.integers(0, 2),
        delay=st.sampled_from([0.25, 2.0, math.inf]),
        may_displace=st.booleans(),
    )
    def offer(  # noqa: PLR0917
        self, rows: int, nbytes: int, group: Hashable, patience: float, level: int, delay: float, may_displace: bool
    ) -> None:
        level = min(level, len(self.limits.level_max_requests) - 1)
        delay_at = self.now + delay if self.limits.delays else math.inf
        request = Pending(rows, nbytes, group, self.now + patience, self.now, level, delay_at)
        if rows <= self.most_rows and may_displace:
            self.displace(request)
        is_over = bool(self.live) and not self.fits(request, self.live.values())
        try:
            self.batcher.offer(request)
        except InvalidArgument:
            assert rows > self.most_rows
        except QueueFull:
            assert is_over
        else:
            assert rows <= self.most_rows
            assert not is_over
            self.live[id(request)] = request

    def fits(self, request: Pending, waiting: Iterable[Pending]) -> bool:
        waiting = list(waiting)
        most = self.limits.level_max_requests[request.level]
        return (
            sum(other.rows for other in waiting) + request.rows <= self.limits.max_queue_rows
            and sum(other.nbytes for other in waiting) + request.nbytes <= self.limits.max_queue_bytes
            and not (most and sum(other.level == request.level for other in waiting) >= most)
        )

    def displace(self, request: Pending) -> None:
        """Whoever gives way is less important, and without the last of them the request would not have fitted."""
        if not self.live or self.fits(request, self.live.values()):
            return
        before = list(self.live.values())
        try:
            displaced = self.batcher.displace_for(request)
        except QueueFull:
            important = [other for other in before if other.level <= request.level]
            assert important
            assert not self.fits(request, important), "it would have fitted in place of the less important"
            return
        assert displaced
        assert all(other.level > request.level for other in displaced)
        spared = [other for other in before if other not in displaced[:-1]]
        assert not self.fits(request, spared)
        for other in displaced:
            self.leave(other)
        assert not self.live or self.fits(request, self.live.values())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.live.values())))
        assert self.batcher.withdraw(request)
        assert not self.batcher.withdraw(request)
        self.leave(request)

    @rule(step=st.sampled_from([0.0, 0.25, 1.0, 7.0]))
    def tick(self, step: float) -> None:
        self.now += step

    @rule()
    def expire(self) -> None:
        due = [request for request in self.live.values() if request.deadline <= self.now]
        expired = self.batcher.expire(self.now)
        assert {id(request) for request in expired} == {id(request) for request in due}
        assert [request.deadline for request in expired] == sorted(request.deadline for request in due)
        for request in expired:
            self.leave(request)

    @rule()
    def take(self) -> None:
        batch = self.batcher.take(self.now)
        self.see_delayed()
        live = list(self.live.values())
        if batch is None:
            assert not live or self.now < live[0].arrival + self.limits.max_queue_delay_s
            rows = Counter[Hashable]()
            for request in live:
                rows[request.group] += request.rows
            smallest = min(self.limits.preferred_batch_sizes, default=self.most_rows)
            assert all(count < smallest for count in rows.values()), "a preferred batch was there"
            return
        assert batch
        ranked = sorted(live, key=self.rank)
        group = batch[0].group
        mates = [request for request in ranked if request.group == group]
        assert batch == mates[: len(batch)], "the most important first, then first in, first out, within the group"
        assert self.rank(batch[0]) == self.rank(ranked[0]), "something more important was left waiting"
        rows_taken = sum(request.rows for request in batch)
        assert rows_taken <= self.most_rows
        if len(mates) > len(batch):
            more = rows_taken + mates[len(batch)].rows
            is_whole = more > self.most_rows
            assert (
                is_whole
                or any(rows_taken <= size < more for size in self.limits.preferred_batch_sizes)
                or (len(batch) == 1 and self.limits.preferred_batch_sizes)
            ), "room was left for the next one"
        if self.now >= live[0].arrival + self.limits.max_queue_delay_s:
            assert batch[0] is ranked[0], "nobody is starved"
            if self.limits.max_queue_delay_s and len(mates) > len(batch):
                assert is_whole, "what waited long enough takes all it can"
        for request in batch:
            self.leave(request)

    def rank(self, request: Pending) -> tuple[int, bool]:
        return request.level, id(request) in self.delayed

    def see_delayed(self) -> None:
        late = [request for key, request in self.live.items() if key not in self.delayed and request.delay_at <= self.now]
        for request in sorted(late, key=lambda request: request.delay_at):
            self.delayed.add(id(request))
            self.live[id(request)] = self.live.pop(id(request))

    @rule()
    def clear(self) -> None:
        assert self.batcher.clear() == list(self.live.values())
        for request in list(self.live.values()):
            self.leave(request)

    def leave(self, request: Pending) -> None:
        """Each request leaves once."""
        del self.live[id(request)]
        self.delayed.discard(id(request))
        assert request.ticket not in self.left
        self.left.add(request.ticket)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.batcher) == len(self.live)
        assert self.batcher.waiting_rows == sum(request.rows for request in self.live.values())
        assert self.batcher.waiting_bytes == sum(request.nbytes for request in self.live.values())

    @invariant()
    def never_sleeps_on_work(self) -> None:
        if not self.live:
            assert self.batcher.next_wakeup() == math.inf
            return
        oldest = next(iter(self.live.values()))
        earliest = min(request.deadline for request in self.live.values())
        assert self.batcher.next_deadline() == earliest
        assert self.batcher.next_wakeup() <= min(oldest.arrival + self.limits.max_queue_delay_s, earliest)


BatcherMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
TestDynamicBatcher = BatcherMachine.TestCase
