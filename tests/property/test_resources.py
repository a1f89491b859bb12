"""The rate limiter against a model that is a few lists: whatever happens in whatever order, the promises hold after each step."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.errors import ModelLoadFailed
from core_grpc.scheduler.resources import GLOBAL, Claimant, ResourceKey, ResourceLimiter, ResourceNeed

needs = st.lists(
    st.builds(ResourceNeed, st.sampled_from(["a", "b"]), st.integers(1, 4), st.just(value=False))
    | st.builds(ResourceNeed, st.just("shared"), st.integers(1, 3), st.just(value=True)),
    min_size=1,
    max_size=3,
    unique_by=lambda need: need.name,
)
devices = st.sampled_from(["cpu", "gpu:0"])


class LimiterMachine(RuleBasedStateMachine):
    """Claimants that come, ask, give up, give back and go."""

    @initialize(totals=st.dictionaries(st.sampled_from([("", "a"), ("cpu", "b"), (GLOBAL, "shared")]), st.integers(1, 6)))
    def begin(self, totals: dict[ResourceKey, int]) -> None:
        self.configured = totals
        self.limiter = ResourceLimiter(totals)
        self.here: list[Claimant] = []
        self.line: list[Claimant] = []
        self.held: list[Claimant] = []

    @rule(device=devices, wanted=needs, priority=st.integers(1, 3))
    def join(self, device: str, wanted: list[ResourceNeed], priority: int) -> None:
        keys = {(GLOBAL if need.is_global else device, need.name): need.count for need in wanted}
        if any(count > self.most(key, count) for key, count in keys.items()):
            with pytest.raises(ModelLoadFailed):
                self.limiter.join(device, wanted, priority)
            return
        self.here.append(self.limiter.join(device, wanted, priority))
        assert self.here[-1].needs == keys
        self.settle()

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.here))
        before = claimant in self.line
        if self.limiter.ask(claimant):
            assert not before
            self.hold(claimant)
        elif not before:
            self.line.append(claimant)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        claimant = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.limiter.give_back(claimant)
        self.settle()

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.line))
        self.line.remove(claimant)
        self.limiter.withdraw(claimant)
        self.settle()

    @precondition(lambda self: any(claimant not in self.held for claimant in self.here))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from([claimant for claimant in self.here if claimant not in self.held]))
        self.here.remove(claimant)
        if claimant in self.line:
            self.line.remove(claimant)
        self.limiter.leave(claimant)
        self.settle()

    def settle(self) -> None:
        while claimant := self.limiter.next():
            self.line.remove(claimant)
            self.hold(claimant)

    def hold(self, claimant: Claimant) -> None:
        self.held.append(claimant)
        assert all(self.limiter.free(key) >= 0 for key in claimant.needs), "more was granted than there is"

    def most(self, key: ResourceKey, needed: int) -> int:
        """The total of a resource."""
        configured = self.configured.get(key, self.configured.get(("", key[1])) if key[0] != GLOBAL else None)
        return max([needed, *(claimant.needs.get(key, 0) for claimant in self.here)]) if configured is None else configured

    def taken(self) -> Counter[ResourceKey]:
        return sum((Counter(claimant.needs) for claimant in self.held), Counter())

    @invariant()
    def nothing_is_taken_twice_or_lost(self) -> None:
        taken = self.taken()
        for key in {key for claimant in self.here for key in claimant.needs}:
            total = self.most(key, 0)
            assert self.limiter.free(key) == total - taken[key]

    @invariant()
    def nobody_waits_who_need_not(self) -> None:
        """What is free is not enough for the first in line, nor for anybody who shares no need with others in line."""
        if not self.line:
            return
        first = min(self.line, key=lambda claimant: claimant.tag)
        for claimant in self.line:
            others = {key for other in self.line if other is not claimant for key in other.needs}
            if claimant is first or not others & claimant.needs.keys():
                assert any(self.limiter.free(key) < count for key, count in claimant.needs.items())


LimiterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLimiter = LimiterMachine.TestCase


@given(priorities=st.lists(st.integers(1, 4), min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_turns_are_in_inverse_proportion_to_the_priority(priorities: list[int]) -> None:
    """One resource, claimants that always ask: what their turns cost never differs by more than one turn of each."""
    limiter = ResourceLimiter()
    claimants = [limiter.join("cpu", [ResourceNeed("R")], priority) for priority in priorities]
    turns = Counter[int]()
    running = claimants[0]
    assert limiter.ask(running)
    assert not any(limiter.ask(claimant) for claimant in claimants[1:])
    for _ in range(120):
        turns[claimants.index(running)] += 1
        limiter.give_back(running)
        if not limiter.ask(running):
            granted = limiter.next()
            assert granted is not None
            running = granted
        spent = [turns[index] * priority for index, priority in enumerate(priorities)]
        assert max(spent) - min(spent) <= 2 * max(priorities)
