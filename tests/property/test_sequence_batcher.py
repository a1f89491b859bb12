"""The sequence batcher against a plain model of it: whatever happens in whatever order, its promises hold after each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.errors import InvalidArgument, QueueFull
from core_grpc.scheduler.live_sequences import LiveSequence, SequenceLimits, SequenceRequest, Strategy
from core_grpc.scheduler.sequence_batcher import SequenceBatcher
from core_grpc.scheduler.sequences import SequenceCall, SequenceId

IDS: list[SequenceId] = [1, "1", 2, "b", "c"]
STREAMS = [None, "s", "t"]


@dataclass
class Expected:
    """A sequence as it should be."""

    sequence: LiveSequence[SequenceRequest]
    waiting: list[SequenceRequest] = field(default_factory=list)
    executing: SequenceRequest | None = None
    is_open: bool = True
    stream: str | None = None
    silent_since: float = math.nan
    place: tuple[int, int] | None = None
    """Instance and slot, once it was seen to run."""


class SequenceMachine(RuleBasedStateMachine):
    """Offers, takes, ends of executions, callers and streams that leave, and the passing of time."""

    @initialize(
        is_direct=st.booleans(),
        instances=st.sampled_from([1, 1, 2]),
        slots=st.sampled_from([1, 1, 2, 3]),
        batch=st.integers(1, 3),
        delay=st.sampled_from([0.0, 2.0]),
        enough=st.integers(1, 3),
        requests=st.integers(1, 12),
        nbytes=st.sampled_from([100, 10_000]),
    )
    def begin(  # noqa: PLR0917
        self, is_direct: bool, instances: int, slots: int, batch: int, delay: float, enough: int, requests: int, nbytes: int
    ) -> None:
        most = slots if is_direct else batch
        strategy = Strategy.DIRECT if is_direct else Strategy.OLDEST
        self.limits = SequenceLimits("m", strategy, instances, slots, most, min(enough, most), delay, 4.0, requests, nbytes)
        self.batcher: SequenceBatcher[SequenceRequest] = SequenceBatcher(self.limits)
        self.live: dict[SequenceId, Expected] = {}
        self.backlog: list[SequenceId] = []
        self.left: set[int] = set()
        self.everything: list[SequenceRequest] = []
        self.now = 0.0

    @rule(
        sequence_id=st.sampled_from(IDS),
        is_start=st.sampled_from([True, True, False]),
        is_end=st.sampled_from([False, False, True]),
        nbytes=st.integers(0, 60),
        group=st.sampled_from("aab"),
        patience=st.sampled_from([1.0, 3.0, math.inf, math.inf]),
        stream=st.sampled_from(STREAMS),
    )
    def offer(  # noqa: PLR0917
        self, sequence_id: SequenceId, is_start: bool, is_end: bool, nbytes: int, group: str, patience: float, stream: str | None
    ) -> None:
        self.silence()
        found = self.live.get(sequence_id)
        waiting = [request for expected in self.live.values() for request in expected.waiting]
        is_over = bool(waiting) and (
            len(waiting) >= self.limits.max_queue_requests
            or sum(request.nbytes for request in waiting) + nbytes > self.limits.max_queue_bytes
        )
        request = SequenceRequest(SequenceCall(sequence_id, is_start, is_end), nbytes, group, self.now + patience, self.now, stream)
        self.everything.append(request)
        try:
            self.batcher.offer(request)
        except InvalidArgument:
            assert not is_start
            assert found is None or not found.is_open
            self.left.add(id(request))
            return
        except QueueFull:
            assert is_over
            self.left.add(id(request))
            return
        assert not is_over
        assert is_start or (found is not None and found.is_open)
        if found is None:
            found = self.live[sequence_id] = Expected(request.sequence)
            self.backlog.append(sequence_id)
        assert request.sequence is found.sequence
        found.waiting.append(request)
        found.is_open = not is_end
        found.silent_since = math.nan
        if is_start:
            found.stream = stream
        self.assign()

    @rule(instance=st.integers(0, 1))
    def take(self, instance: int) -> None:
        if instance >= self.limits.instances:
            return
        could = [
            expected.waiting[0]
            for sequence_id, expected in self.live.items()
            if expected.waiting
            and expected.executing is None
            and sequence_id not in self.backlog
            and expected.sequence.instance == instance
        ]
        could.sort(key=lambda request: request.ticket)
        same = [request for request in could if request.group == could[0].group]
        is_due = bool(same) and (len(same) >= self.limits.enough or self.now >= same[0].arrival + self.limits.max_queue_delay_s)
        assert (self.batcher.next_batch_at(instance) <= self.now) == is_due
        batch = self.batcher.take(instance, self.now)
        if not is_due:
            assert batch is None
            return
        assert batch is not None
        chosen = same[: self.limits.max_batch_size]
        if self.limits.strategy is Strategy.DIRECT:
            chosen.sort(key=lambda request: request.sequence.slot)
        assert batch == chosen
        for request in batch:
            expected = self.live[request.call.sequence_id]
            place = (expected.sequence.instance, expected.sequence.slot)
            assert expected.place in (None, place)
            assert place[0] == instance
            expected.place = place
            expected.executing = expected.waiting.pop(0)
            self.leave([request])

    @precondition(lambda self: any(expected.executing for expected in self.live.values()))
    @rule(data=st.data(), is_lost=st.sampled_from([False, False, True]))
    def finish(self, data: st.DataObject, is_lost: bool) -> None:
        sequence_id = data.draw(st.sampled_from([key for key, expected in self.live.items() if expected.executing]))
        expected = self.live[sequence_id]
        request, expected.executing = expected.executing, None
        assert request is not None
        cut = self.cut(expected, 0) if is_lost else []
        assert self.batcher.finished(request, self.now, is_lost=is_lost) == cut
        if request.call.is_end:
            self.release(sequence_id)
        else:
            self.go_on(sequence_id)
        self.assign()

    @precondition(lambda self: any(expected.waiting for expected in self.live.values()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([request for expected in self.live.values() for request in expected.waiting]))
        cut = self.drop(request)
        assert self.batcher.withdraw(request, self.now) == cut
        assert self.batcher.withdraw(request, self.now) == []
        self.assign()

    @rule(step=st.sampled_from([0.5, 1.0, 5.0]))
    def time_passes(self, step: float) -> None:
        self.now += step
        self.silence()
        late = [request for expected in self.live.values() for request in expected.waiting if request.deadline <= self.now]
        ends = [expected.silent_since + 4.0 for expected in self.live.values() if not math.isnan(expected.silent_since)]
        ends += [request.deadline for expected in self.live.values() for request in expected.waiting]
        assert self.batcher.next_end() == min(ends, default=math.inf)
        late.sort(key=lambda request: (request.deadline, request.ticket))
        expired, cut = [], []
        for request in late:
            if id(request) not in self.left:
                cut += self.drop(request)
                expired.append(request)
        assert self.batcher.expire(self.now) == (expired, cut)
        self.assign()

    @rule(stream=st.sampled_from(["s", "t"]))
    def stream_ends(self, stream: str) -> None:
        cut: list[SequenceRequest] = []
        for sequence_id in [key for key, expected in self.live.items() if expected.stream == stream]:
            expected = self.live[sequence_id]
            expected.stream = None
            starts = [index for index, request in enumerate(expected.waiting) if request.call.is_start]
            last = starts[-1] if starts else 0
            cut += expected.waiting[last:]
            self.leave(expected.waiting[last:])
            del expected.waiting[last:]
            expected.is_open = False
            self.go_on(sequence_id)
        assert {id(request) for request in self.batcher.end_stream(stream, self.now)} == {id(request) for request in cut}
        # They ended in the order in which the stream began them, which is that of the slots they give back.
        self.assign()

    @rule()
    def quiet_ones_end(self) -> None:
        self.batcher.end_quiet()
        for sequence_id in [key for key, expected in self.live.items() if not math.isnan(expected.silent_since)]:
            self.release(sequence_id)
        self.assign()

    @invariant()
    def what_waits_is_known(self) -> None:
        if not hasattr(self, "live"):
            return
        waiting = [request for expected in self.live.values() for request in expected.waiting]
        assert len(self.batcher) == len(waiting)
        assert self.batcher.waiting_bytes == sum(request.nbytes for request in waiting)
        assert self.batcher.sequences == len(self.live)
        assert set(self.batcher.streams) == {expected.stream for expected in self.live.values()} - {None}

    @invariant()
    def slots_are_held_by_one_and_none_is_lost(self) -> None:
        if not hasattr(self, "live"):
            return
        held = [(item.sequence.instance, item.sequence.slot) for key, item in self.live.items() if key not in self.backlog]
        assert len(set(held)) == len(held) == min(self.limits.slots * self.limits.instances, len(self.live))
        assert all(0 <= instance < self.limits.instances and 0 <= slot < self.limits.slots for instance, slot in held)
        assert all(self.live[key].sequence.instance == -1 for key in self.backlog)

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        self.leave(self.batcher.clear())
        for expected in self.live.values():
            if expected.executing:
                self.batcher.finished(expected.executing, self.now)
        assert self.left == {id(request) for request in self.everything}
        assert (len(self.batcher), self.batcher.sequences, self.batcher.waiting_bytes, list(self.batcher.streams)) == (0, 0, 0, [])

    def leave(self, requests: list[SequenceRequest]) -> None:
        for request in requests:
            assert id(request) not in self.left
            self.left.add(id(request))

    def cut(self, expected: Expected, start: int) -> list[SequenceRequest]:
        """What waits from ``start`` to the next START leaves."""
        end = start
        while end < len(expected.waiting) and not expected.waiting[end].call.is_start:
            end += 1
        gone = expected.waiting[start:end]
        if end == len(expected.waiting):
            expected.is_open = False
        del expected.waiting[start:end]
        self.leave(gone)
        return gone

    def drop(self, request: SequenceRequest) -> list[SequenceRequest]:
        expected = self.live[request.call.sequence_id]
        index = expected.waiting.index(request)
        del expected.waiting[index]
        self.leave([request])
        gone = self.cut(expected, index)
        self.go_on(request.call.sequence_id)
        return gone

    def go_on(self, sequence_id: SequenceId) -> None:
        expected = self.live[sequence_id]
        if expected.executing or expected.waiting:
            return
        if expected.is_open:
            if math.isnan(expected.silent_since):
                expected.silent_since = self.now
        else:
            self.release(sequence_id)

    def silence(self) -> None:
        self.batcher.end_silent(self.now)
        for sequence_id in [key for key, expected in self.live.items() if self.now >= expected.silent_since + 4.0]:
            self.release(sequence_id)
        self.assign()

    def release(self, sequence_id: SequenceId) -> None:
        expected = self.live[sequence_id]
        expected.place = None
        expected.silent_since = math.nan
        if expected.waiting:
            self.backlog.append(sequence_id)
            return
        del self.live[sequence_id]
        if sequence_id in self.backlog:
            self.backlog.remove(sequence_id)

    def assign(self) -> None:
        free = self.limits.slots * self.limits.instances - (len(self.live) - len(self.backlog))
        del self.backlog[:free]


TestSequenceBatcher = SequenceMachine.TestCase
TestSequenceBatcher.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
