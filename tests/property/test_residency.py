"""The budget of loaded models against a model that is a plain dict: whatever happens in whatever order, its promises hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.models.residency import FIRST_PAUSE_S, LONGEST_PAUSE_S, BackOff, Budget, Resident, Verdict

DEVICES = ("cpu", "gpu:0")
SIZES = st.dictionaries(st.sampled_from(DEVICES), st.integers(0, 40), max_size=2)


class ResidencyMachine(RuleBasedStateMachine):
    """Loads with and without asking, use, work, departures, failures, and the passing of time."""

    @initialize(max_models=st.integers(0, 4), max_bytes=st.sampled_from([0, 30, 60, 100]))
    def begin(self, max_models: int, max_bytes: int) -> None:
        self.budget = Budget(max_models, max_bytes)
        self.back_off: BackOff[int] = BackOff()
        self.loaded: dict[int, Resident[int]] = {}
        self.pauses: dict[int, list[tuple[float, float]]] = {}
        self.now = 0.0
        self.next_key = 0

    def holds(self, residents: list[Resident[int]], wanted: dict[str, int] | None = None) -> bool:
        sizes = [resident.nbytes for resident in residents] + ([] if wanted is None else [wanted])
        per_device = [sum(size.get(device, 0) for size in sizes) for device in DEVICES]
        too_many = 0 < self.budget.max_models < len(sizes)
        return not too_many and not (self.budget.max_bytes and max(per_device) > self.budget.max_bytes)

    def checked_decision(self, wanted: dict[str, int] | None) -> Verdict[int]:
        residents = list(self.loaded.values())
        verdict = self.budget.who_must_go(residents, wanted)
        may_go = [item for item in residents if item.is_idle and not item.is_pinned]
        gone = [self.loaded[key] for key in verdict.going]
        assert len(set(verdict.going)) == len(gone)
        assert all(item in may_go for item in gone)
        staying = [item for item in residents if item not in gone]
        assert self.holds(staying, wanted) == verdict.is_enough
        if not verdict.is_enough:
            assert not self.holds([item for item in residents if item not in may_go], wanted)
        if gone:
            assert not self.holds([*staying, gone[-1]], wanted)
        assert [item.last_used for item in gone] == sorted(item.last_used for item in gone)
        for item in may_go:
            same = [other for other in gone if {d for d, n in other.nbytes.items() if n} == {d for d, n in item.nbytes.items() if n}]
            assert item in gone or all(other.last_used <= item.last_used for other in same)
        return verdict

    @rule(size=SIZES, is_pinned=st.booleans(), is_asking=st.booleans())
    def load(self, size: dict[str, int], is_pinned: bool, is_asking: bool) -> None:
        """Who does not ask is the operator, whose word counts more than the budget."""
        if is_asking:
            before = self.holds(list(self.loaded.values()), size)
            going, is_enough = self.checked_decision(size)
            assert not before or (going, is_enough) == ([], True)
            if not is_enough:
                return
            assert self.budget.can_ever_hold(list(self.loaded.values()), size)
            for key in going:
                del self.loaded[key]
            assert self.holds(list(self.loaded.values()), size)
        self.loaded[self.next_key] = Resident(self.next_key, size, self.now, is_idle=False, is_pinned=is_pinned)
        self.next_key += 1

    @rule()
    def settle(self) -> None:
        for key in self.checked_decision(None).going:
            del self.loaded[key]

    @precondition(lambda self: self.loaded)
    @rule(data=st.data(), is_idle=st.booleans())
    def use(self, data: st.DataObject, is_idle: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.loaded)))
        self.loaded[key] = replace(self.loaded[key], last_used=self.now, is_idle=is_idle)

    @precondition(lambda self: self.loaded)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        del self.loaded[data.draw(st.sampled_from(sorted(self.loaded)))]

    @rule(size=SIZES)
    def hopeless(self, size: dict[str, int]) -> None:
        pinned = [item for item in self.loaded.values() if item.is_pinned]
        assert self.budget.can_ever_hold(list(self.loaded.values()), size) == self.holds(pinned, size)

    @rule(step=st.sampled_from([0.25, 1.0, 7.0, 100.0]))
    def tick(self, step: float) -> None:
        self.now += step

    @rule(key=st.integers(0, 2))
    def fail(self, key: int) -> None:
        if not self.back_off.may_try(key, self.now):
            return
        pause = self.back_off.failed(key, self.now)
        self.pauses.setdefault(key, []).append((self.now, pause))

    @rule(key=st.integers(0, 2))
    def succeed(self, key: int) -> None:
        self.back_off.succeeded(key)
        self.pauses.pop(key, None)

    @invariant()
    def pauses_are_kept(self) -> None:
        for key in range(3):
            failures = getattr(self, "pauses", {}).get(key, [])
            for count, (_, pause) in enumerate(failures):
                assert pause == min(FIRST_PAUSE_S * 2**count, LONGEST_PAUSE_S)
            if hasattr(self, "back_off"):
                assert self.back_off.may_try(key, self.now) == (not failures or self.now >= sum(failures[-1]))


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
