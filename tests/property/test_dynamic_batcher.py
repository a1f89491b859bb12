"""The dynamic batcher against a model that is a plain dict: whatever happens in whatever order, its promises hold after each step."""

from __future__ import annotations

import math
from collections.abc import Hashable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.errors import InvalidArgument, QueueFull
from core_grpc.scheduler.dynamic_batcher import BatchingLimits, DynamicBatcher, Pending


class BatcherMachine(RuleBasedStateMachine):
    """Offers, withdrawals, expiry, takes and the passing of time."""

    @initialize(
        max_batch_size=st.integers(0, 5), delay=st.sampled_from([0.0, 1.0, 5.0]), rows=st.integers(1, 30), nbytes=st.integers(1, 3000)
    )
    def begin(self, max_batch_size: int, delay: float, rows: int, nbytes: int) -> None:
        self.limits = BatchingLimits(max_batch_size, delay, rows, nbytes)
        self.batcher: DynamicBatcher[Pending] = DynamicBatcher(self.limits)
        self.live: dict[int, Pending] = {}
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
    )
    def offer(self, rows: int, nbytes: int, group: Hashable, patience: float) -> None:
        request = Pending(rows, nbytes, group, self.now + patience, self.now)
        waiting_rows = sum(other.rows for other in self.live.values())
        waiting_bytes = sum(other.nbytes for other in self.live.values())
        is_over = waiting_rows + rows > self.limits.max_queue_rows or waiting_bytes + nbytes > self.limits.max_queue_bytes
        try:
            self.batcher.offer(request)
        except InvalidArgument:
            assert rows > self.most_rows
        except QueueFull:
            assert self.live
            assert is_over
        else:
            assert rows <= self.most_rows
            assert not (self.live and is_over)
            self.live[id(request)] = request

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
        if batch is None:
            assert all(self.now < request.arrival + self.limits.max_queue_delay_s for request in self.live.values())
            return
        assert batch
        group = batch[0].group
        mates = [request for request in self.live.values() if request.group == group]
        assert batch == mates[: len(batch)], "first in, first out, within the group"
        rows = sum(request.rows for request in batch)
        assert rows <= self.most_rows
        if len(mates) > len(batch):
            assert rows + mates[len(batch)].rows > self.most_rows, "room was left for the next one"
        oldest = next(iter(self.live.values()))
        if self.now >= oldest.arrival + self.limits.max_queue_delay_s:
            assert batch[0] is oldest, "nobody is starved"
        for request in batch:
            self.leave(request)

    @rule()
    def clear(self) -> None:
        assert self.batcher.clear() == list(self.live.values())
        for request in list(self.live.values()):
            self.leave(request)

    def leave(self, request: Pending) -> None:
        """Each request leaves once."""
        del self.live[id(request)]
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


BatcherMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestDynamicBatcher = BatcherMachine.TestCase
