"""Who may execute now: the event loop's side of ``fair_share.py`` (slots of devices) and ``resources.py`` (the rate limiter).

Whoever runs batches on an instance has a ``Gate`` and keeps to its protocol::

    gate.on_turn = wake                 # once
    if there is work that is due and gate.try_acquire():
        take the work, as late as this  # or none, when it is gone meanwhile
        run it
        gate.release()                  # always, also when nothing was taken or the run failed

When ``try_acquire`` says False the gate is in line, and ``on_turn`` is called on the event loop once it is its turn. The turn is taken by a
``try_acquire`` within that call, or passes on when it returns. A gate is in line once, however many instances share it: take one turn,
then try again for the next. Resources come first and the slot last, so nobody who has a slot waits for anything. ``close`` leaves the
line at once; what was acquired is still to be released. While nobody is in line, acquiring is a comparison and two additions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from core_grpc.scheduler.fair_share import FairShare, Flow
from core_grpc.scheduler.resources import Claimant, ResourceKey, ResourceLimiter, ResourceNeed


class GateOrder(NamedTuple):
    """What an instance needs for each execution."""

    device: str
    """``cpu``, ``gpu:0``, …"""
    takes_slot: bool = True
    needs: tuple[ResourceNeed, ...] = ()
    priority: int = 1
    """See ``resources.py``."""


class ComputeGrants:
    """The devices of a node and the resources that its models share. Belongs to one event loop."""

    def __init__(
        self,
        slots_of: Callable[[str], int],
        totals: Mapping[ResourceKey, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``slots_of`` gives the slots of a device, when it is first used; ``totals`` are those of ``ResourceLimiter``."""
        self._slots_of = slots_of
        self.shares: dict[str, FairShare[Gate]] = {}
        """By device."""
        self._gates: dict[Claimant, Gate] = {}
        self.limiter = ResourceLimiter(totals)
        self.clock = clock

    def __repr__(self) -> str:
        return f"<ComputeGrants: {self.shares!r}, {self.limiter!r}>"

    def gates(self, orders: Sequence[GateOrder], weight: float = 1.0) -> list[Gate]:
        """A gate for each instance of one model version. Equal orders share one, and gates on one device share the model's account there.

        Raises:
            ModelLoadFailed: an order needs more of a resource than there is; no gate is open then.
        """
        flows: dict[str, Flow] = {}
        made: dict[GateOrder, Gate] = {}
        try:
            for order in orders:
                if order not in made:
                    made[order] = self._gate(order, flows.setdefault(order.device, Flow(weight)))
        except BaseException:
            for gate in made.values():
                gate.close()
            raise
        return [made[order] for order in orders]

    def pass_on(self, share: FairShare[Gate] | None) -> None:
        """Gives turns to whoever can have one now."""
        while claimant := self.limiter.next():
            self._gates[claimant].has_resources()
        if share is not None and share.has_line:
            now = self.clock()
            while gate := share.next(now):
                gate.give_turn()

    def forget(self, claimant: Claimant) -> None:
        """After its gate was closed and holds nothing."""
        del self._gates[claimant]
        self.limiter.leave(claimant)
        self.pass_on(None)

    def _gate(self, order: GateOrder, flow: Flow) -> Gate:
        share = None
        if order.takes_slot:
            share = self.shares.get(order.device)
            if share is None:
                share = self.shares[order.device] = FairShare(self._slots_of(order.device))
        if not order.needs:
            return Gate(self, share, flow, None)
        claimant = self.limiter.join(order.device, order.needs, order.priority)
        gate = self._gates[claimant] = Gate(self, share, flow, claimant)
        self.pass_on(None)
        return gate


class Gate:
    """One model's way to a device, for instances with the same needs. See the module's text for the protocol."""

    def __init__(self, grants: ComputeGrants, share: FairShare[Gate] | None, flow: Flow, claimant: Claimant | None) -> None:
        self._grants = grants
        self._share = share
        self._flow = flow
        self._claimant = claimant
        self.on_turn: Callable[[], None] = _nobody
        self._is_in_line = False
        self._has_turn = False
        """A grant that came by the line and was not taken yet."""
        self._held = 0
        """Grants that were not given back, that one included."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Gate: {self._held} held{', in line' if self._is_in_line else ''}>"

    @property
    def is_in_line(self) -> bool:
        """Whether ``on_turn`` will be called."""
        return self._is_in_line or self._has_turn

    def try_acquire(self) -> bool:
        """Takes the right to execute once. False: the gate is in line (or closed)."""
        if self._has_turn:
            self._has_turn = False
            return True
        if self._is_in_line or self._is_closed:
            return False
        if self._claimant is not None and not self._grants.limiter.ask(self._claimant):
            self._is_in_line = True
            return False
        if self._share is not None and not self._share.take(self._flow, now := self._grants.clock()):
            self._share.line_up(self, self._flow, now)
            self._is_in_line = True
            return False
        self._held += 1
        return True

    def release(self, *, has_more: bool = False) -> None:
        """Gives a grant back, after one execution.

        With more work that is due the gate is in line before the grant is given back: it is compared with who waits already, instead of
        coming after them whatever its share.
        """
        if has_more and not self.is_in_line and self._others_wait() and self.try_acquire():
            self._hold_turn()
        self._held -= 1
        if self._share is not None:
            self._share.give_back(self._flow, self._grants.clock())
        if self._claimant is not None:
            self._grants.limiter.give_back(self._claimant)
            self._forget_if_done()
        self._grants.pass_on(self._share)

    def close(self) -> None:
        """Leaves the line and gives back a turn that was not taken; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_turn = _nobody  # Its owner holds the gate: nobody has to look for cycles to free the two.
        if self._is_in_line:
            self._is_in_line = False
            self._withdraw()
        if self._has_turn:
            self._has_turn = False
            self.release()
        elif self._claimant is not None:
            self._forget_if_done()

    def has_resources(self) -> None:
        """Called by the grants: the limiter has granted what is needed of it."""
        if self._share is None or self._share.take(self._flow, self._grants.clock()):
            self.give_turn()
        else:
            self._share.line_up(self, self._flow, self._grants.clock())

    def give_turn(self) -> None:
        """Called by the grants: everything is there. The owner hears of it in the loop's next turn, so that nobody runs in another's."""
        self._is_in_line = False
        self._held += 1
        self._hold_turn()

    def _hold_turn(self) -> None:
        self._has_turn = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Also where a ``try_acquire`` that came before has taken the turn: another instance may have to get in line."""
        if self._is_closed:
            return
        try:
            self.on_turn()
        finally:
            if self._has_turn:
                self._has_turn = False
                self.release()

    def _others_wait(self) -> bool:
        return (self._share is not None and self._share.has_line) or (self._claimant is not None and self._grants.limiter.has_line)

    def _withdraw(self) -> None:
        waited_for_slot = self._share is not None and self._share.withdraw(self)
        if self._claimant is not None:
            if waited_for_slot:
                self._grants.limiter.give_back(self._claimant)
            else:
                self._grants.limiter.withdraw(self._claimant)
        self._grants.pass_on(self._share)

    def _forget_if_done(self) -> None:
        if self._is_closed and not self._held and self._claimant is not None:
            claimant, self._claimant = self._claimant, None
            self._grants.forget(claimant)


def _nobody() -> None:
    """Whose turn it is has no owner yet."""
