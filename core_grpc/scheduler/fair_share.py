"""A fair share of one device between the models on it: start-time fair queueing over execution slots. Pure: it is given the time.

A device runs at most ``slots`` executions at once. Each model has a *flow* there, with a weight and a virtual time that grows while it
executes (by the seconds, divided by the weight). When a slot is free and several wait, the flow with the least virtual time is next; among
equals one that comes from a rest, then the first come. So a model with little work is next, whatever the others have queued. What is kept
true:

* executions that were granted and not given back are never more than ``slots``;
* no slot is free while somebody is in line, once ``next`` has said None;
* flows that always wait get device time in proportion to their weights, but for the executions under way;
* a flow that was idle starts at the virtual time of the device: it neither saves up time nor pays for others.

Nothing is preempted. A claim is whatever its owner wants to be told of; it is in line once at most.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar


class Flow:
    """One model's account at one device."""

    __slots__ = ("claims", "is_rested", "running", "since", "virtual", "weight")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.claims = 0
        """In line."""
        self.running = 0
        """Granted and not given back."""
        self.virtual = 0.0
        """Weighted seconds of the device, as of ``since``."""
        self.since = 0.0
        self.is_rested = False
        """Whether it waits and did nothing while others were served."""

    def __repr__(self) -> str:
        return f"<Flow: {self.running} running, {self.claims} in line, virtual time {self.virtual:g}>"

    def virtual_at(self, now: float) -> float:
        """The virtual time, with what runs counted until now."""
        return self.virtual + self.running * (now - self.since) / self.weight

    def rank(self, now: float) -> tuple[float, bool]:
        """The least is next."""
        return self.virtual_at(now), not self.is_rested


Claim = TypeVar("Claim", bound=Hashable)


class FairShare(Generic[Claim]):
    """See the module's text. ``now`` is of one clock, in seconds, and never goes back."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._line: dict[Claim, Flow] = {}
        """In order of arrival, which decides between equals."""
        self._virtual = 0.0
        """Of the flow that was granted last."""

    def __repr__(self) -> str:
        return f"<FairShare: {self._free} of {self.slots} slots free, {len(self._line)} in line>"

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return self._free

    def take(self, flow: Flow, now: float) -> bool:
        """Takes a slot where one is free and nobody is in line."""
        if self._line or not self._free:
            return False
        self._settle(flow, now)
        self._grant(flow)
        return True

    @property
    def has_line(self) -> bool:
        """Whether somebody waits."""
        return bool(self._line)

    def line_up(self, claim: Claim, flow: Flow, now: float) -> None:
        """Puts a claim at the end of the line, after ``take`` said False."""
        self._settle(flow, now)
        flow.claims += 1
        self._line[claim] = flow

    def withdraw(self, claim: Claim) -> bool:
        """Takes a claim out of the line; whether it was there."""
        flow = self._line.pop(claim, None)
        if flow is None:
            return False
        flow.claims -= 1
        return True

    def give_back(self, flow: Flow, now: float) -> None:
        """Ends one execution of the flow. Call ``next`` afterwards."""
        self._settle(flow, now)
        flow.running -= 1
        self._free += 1

    def next(self, now: float) -> Claim | None:
        """Grants a slot to the claim whose turn it is; None where no slot is free or nobody waits. To be called until then."""
        if not self._free or not self._line:
            return None
        line = self._line
        claim = next(iter(line)) if len(line) == 1 else min(line, key=lambda claim: line[claim].rank(now))
        flow = line.pop(claim)
        self._settle(flow, now)
        flow.claims -= 1
        self._grant(flow)
        return claim

    def _settle(self, flow: Flow, now: float) -> None:
        """Brings the account up to date; one that was idle comes up to the device's virtual time."""
        if flow.running:
            flow.virtual += flow.running * (now - flow.since) / flow.weight
        elif not flow.claims and flow.virtual < self._virtual:
            flow.virtual = self._virtual
            flow.is_rested = True
        flow.since = now

    def _grant(self, flow: Flow) -> None:
        self._free -= 1
        flow.running += 1
        flow.is_rested = False
        if flow.virtual > self._virtual:  # noqa: PLR1730 (felt: once for each batch)
            self._virtual = flow.virtual
