"""Fair shares of a device against a model that is a few lists: whatever happens in whatever order, the promises hold after each step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.scheduler.fair_share import FairShare, Flow


class FairShareMachine(RuleBasedStateMachine):
    """Flows that take, line up, give up and give back, and the passing of time. Each flow has up to two claims, as two gates would."""

    @initialize(slots=st.integers(1, 3), weights=st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=2, max_size=4))
    def begin(self, slots: int, weights: list[float]) -> None:
        self.share: FairShare[tuple[int, int]] = FairShare(slots)
        self.flows = [Flow(weight) for weight in weights]
        self.line: list[tuple[int, int]] = []
        self.running: list[int] = []
        """Indexes of flows, once for each execution."""
        self.now = 0.0

    claims = st.tuples(st.integers(0, 3), st.integers(0, 1))

    @rule(claim=claims)
    def ask(self, claim: tuple[int, int]) -> None:
        index = claim[0] % len(self.flows)
        claim = (index, claim[1])
        if claim in self.line:
            return
        if self.share.take(self.flows[index], self.now):
            assert not self.line, "nobody is passed over"
            assert len(self.running) < self.share.slots
            self.running.append(index)
        else:
            assert len(self.running) == self.share.slots
            self.share.line_up(claim, self.flows[index], self.now)
            self.line.append(claim)
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        index = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.share.give_back(self.flows[index], self.now)
        self.settle()

    @rule(claim=claims)
    def withdraw(self, claim: tuple[int, int]) -> None:
        was_there = claim in self.line
        assert self.share.withdraw(claim) == was_there
        if was_there:
            self.line.remove(claim)
        self.settle()

    @rule(step=st.sampled_from([0.0, 0.25, 1.0, 16.0]))
    def tick(self, step: float) -> None:
        self.now += step

    def settle(self) -> None:
        """Grants what can be granted; each time it is the turn of the least rank, the first come among equals."""
        while True:
            rank = {claim: self.flows[claim[0]].rank(self.now) for claim in self.line}
            claim = self.share.next(self.now)
            if claim is None:
                return
            assert claim == min(self.line, key=lambda claim: rank[claim])
            self.line.remove(claim)
            self.running.append(claim[0])

    @invariant()
    def slots_are_counted_and_used(self) -> None:
        assert self.share.free == self.share.slots - len(self.running)
        assert self.share.has_line == bool(self.line)
        assert not (self.line and self.share.free), "no slot is free while somebody waits"
        for index, flow in enumerate(self.flows):
            assert flow.running == self.running.count(index)
            assert flow.claims == sum(claim[0] == index for claim in self.line)


FairShareMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestFairShare = FairShareMachine.TestCase


lengths = st.lists(st.sampled_from([0.5, 1.0, 2.0, 8.0]), min_size=2, max_size=4)


@given(lengths=lengths, data=st.data())
@settings(max_examples=100, deadline=None)
def test_busy_flows_get_time_by_weight(lengths: list[float], data: st.DataObject) -> None:
    """One slot, flows that always wait: their weighted times never differ by more than one execution of each of them."""
    weights = [data.draw(st.sampled_from([0.5, 1.0, 3.0])) for _ in lengths]
    share: FairShare[int] = FairShare(1)
    flows = [Flow(weight) for weight in weights]
    got = [0.0] * len(flows)
    now = 0.0
    assert share.take(flows[0], now)
    running = 0
    for index in range(1, len(flows)):
        share.line_up(index, flows[index], now)
    for _ in range(60):
        now += lengths[running]
        got[running] += lengths[running]
        share.give_back(flows[running], now)
        share.line_up(running, flows[running], now)
        following = share.next(now)
        assert following is not None
        running = following
        for a in range(len(flows)):
            for b in range(a):
                gap = abs(got[a] / weights[a] - got[b] / weights[b])
                assert gap <= lengths[a] / weights[a] + lengths[b] / weights[b]


@given(hot=st.integers(1, 6), slots=st.integers(1, 3), length=st.sampled_from([0.5, 4.0]))
@settings(max_examples=50, deadline=None)
def test_a_model_with_little_work_is_next(hot: int, slots: int, length: float) -> None:
    """However many wait, who comes after a rest runs when the first of the executions under way ends; a rest saves up nothing."""
    share: FairShare[object] = FairShare(slots)
    flows = [Flow() for _ in range(hot)]
    rare, now = Flow(), 0.0
    under_way: list[Flow] = []
    for _ in range(slots):
        assert share.take(flows[0], now)
        under_way.append(flows[0])
    claims = {object(): flow for flow in flows}
    for claim, flow in claims.items():
        share.line_up(claim, flow, now)
    for turn in range(30):
        now += length
        if turn in (10, 25):
            share.line_up(rare, rare, now)
        flow = under_way.pop(0)
        share.give_back(flow, now)
        granted = share.next(now)
        if turn in (10, 25):
            assert granted is rare
            share.line_up(rare, rare, now)
            assert share.next(now) is None
            assert share.withdraw(rare)
            under_way.append(rare)
        else:
            assert granted is not None
            assert granted is not rare
            under_way.append(claims[granted])
            share.line_up(granted, claims[granted], now)
