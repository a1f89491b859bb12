"""Who pays for a run of the engine: its members, by rows, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core_grpc.types import InferRequest

_NS = 1_000_000_000


class Charged(Protocol):
    """A request of a batch."""

    @property
    def request(self) -> InferRequest | None:
        """What says who is charged; None for nobody."""
        ...


def charge_members(batch: Sequence[Charged], rows: Sequence[int], compute_s: float) -> None:
    """Divides the time of a run among the requests of its batch by their ``rows``. The shares add up to ``compute_s`` in whole nanoseconds.

    A member whose caller has left has its share too: the engine did the work.
    """
    ns, total, before, paid = int(compute_s * _NS), sum(rows), 0, 0
    for member, its_rows in zip(batch, rows, strict=True):
        before += its_rows
        share = ns * before // total - paid
        paid += share
        request = member.request
        if request is not None and request.charge is not None:
            request.charge.add_compute(share)
