"""Repositories that change at random under a detector with a clock of its own; the invariants are listed in its module."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from core_grpc.models.change_detection import ChangeDetector, Changes

SETTLE_S = 2.0
NAMES = ("a", "b", "c")


class PolledRepository(RuleBasedStateMachine):
    """The model: what is on disk, and since when each name was found with the same fingerprint without a break."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.disk: dict[str, bytes] = {"a": b"0"}
        self.contents = 0
        self.detector = ChangeDetector(SETTLE_S, dict(self.disk))
        self.handed_out: dict[str, bytes | None] = {"a": b"0"}
        self.found_since: dict[str, tuple[bytes | None, float, int]] = {}
        """Fingerprint, first look at it, looks at it."""

    @rule(name=st.sampled_from(NAMES))
    def write(self, name: str) -> None:
        self.contents += 1
        self.disk[name] = str(self.contents).encode()

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.disk.pop(name, None)

    @rule(name=st.sampled_from(NAMES), content=st.sampled_from([b"0", b"1"]))
    def put_back(self, name: str, content: bytes) -> None:
        self.disk[name] = content

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.9, 2.0, 7.0]))
    def look(self, seconds: float) -> None:
        self.now += seconds
        for name in NAMES:
            fingerprint = self.disk.get(name)
            before = self.found_since.get(name)
            is_same = before is not None and before[0] == fingerprint
            self.found_since[name] = (fingerprint, before[1], before[2] + 1) if before and is_same else (fingerprint, self.now, 1)
        changes = self.detector.look(self.now, dict(self.disk))
        assert changes.changed == tuple(sorted(changes.changed))
        for name in (*changes.changed, *changes.removed):
            fingerprint, since, looks = self.found_since[name]
            assert looks >= 2
            assert self.now - since >= SETTLE_S
            assert self.handed_out.get(name) != fingerprint, "not twice for the same files"
            assert (fingerprint is None) == (name in changes.removed)
            self.handed_out[name] = fingerprint

    @rule()
    def nothing_changes_any_more(self) -> None:
        for _ in range(3):
            self.look(SETTLE_S)
        assert {name: content for name, content in self.handed_out.items() if content is not None} == self.disk
        assert self.detector.next_look() is None

    @invariant()
    def a_pending_change_has_its_time(self) -> None:
        due = self.detector.next_look()
        assert due is None or due <= self.now + SETTLE_S


PolledRepository.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPolledRepository = PolledRepository.TestCase


def test_a_copy_that_goes_on_is_not_handed_out() -> None:
    detector = ChangeDetector(1.0, {})
    for second in range(20):
        assert detector.look(second * 0.9, {"m": str(second).encode()}) == Changes()
        assert detector.next_look() == second * 0.9 + 1.0
    assert detector.look(19 * 0.9 + 0.9, {"m": b"19"}) == Changes()
    assert detector.look(19 * 0.9 + 1.0, {"m": b"19"}) == Changes(changed=("m",))
    assert detector.look(60, {"m": b"19"}) == Changes()
    assert detector.next_look() is None


def test_without_a_settling_time_it_takes_two_looks() -> None:
    detector = ChangeDetector(0.0, {})
    assert detector.look(5.0, {"m": b"1"}) == Changes()
    assert detector.look(5.0, {"m": b"1"}) == Changes(changed=("m",))


def test_a_model_that_is_swapped_is_not_removed() -> None:
    detector = ChangeDetector(1.0, {"m": b"1"})
    assert detector.look(0, {}) == Changes()
    assert detector.look(0.5, {"m": b"2"}) == Changes()
    assert detector.look(1.5, {"m": b"2"}) == Changes(changed=("m",))
    assert detector.look(2.0, {}) == Changes()
    assert detector.look(3.0, {}) == Changes(removed=("m",))
