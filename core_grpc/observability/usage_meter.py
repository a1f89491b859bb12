"""Usage metering: what each caller used of each model, to the last request, whatever became of it.

A request is metered from the moment its model was found. It is counted once, when it has ended, under its outcome: with its rows (once they
are known), the bytes of its input and output tensors, and the engine time that was spent on it. A batch's time is divided among its
members by rows (``scheduler/charges.py``); time that the engine spends on a request whose caller has left is added when it is spent.
A request to a pipeline is metered under the pipeline's name, with the engine time of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from core_grpc.observability.caller import CALLER
from core_grpc.observability.figures import UsageFigures, UsageKey

OK, FAILED, CANCELLED = "ok", "failed", "cancelled"


class _Counts:
    __slots__ = ("compute_ns", "input_bytes", "output_bytes", "requests", "rows")

    def __init__(self) -> None:
        self.requests = self.rows = self.input_bytes = self.output_bytes = self.compute_ns = 0

    def figures(self) -> UsageFigures:
        return UsageFigures(self.requests, self.rows, self.input_bytes, self.output_bytes, self.compute_ns)


class RequestCharge:
    """One request. Belongs to the event loop."""

    __slots__ = ("_caller", "_compute_ns", "_input_bytes", "_key", "_meter", "_model", "_version", "output_bytes", "rows")

    def __init__(self, meter: UsageMeter, model: str, version: str, input_bytes: int) -> None:
        self._meter = meter
        self._caller = CALLER.get()
        self._model = model
        self._version = version
        self._input_bytes = input_bytes
        self._compute_ns = 0
        self._key: UsageKey | None = None
        self.rows = 0
        self.output_bytes = 0

    def add_compute(self, ns: int) -> None:
        """Engine time that was spent on it; also after its end."""
        if self._key is None:
            self._compute_ns += ns
        else:
            self._meter.counts(self._key).compute_ns += ns

    def close(self, outcome: str) -> None:
        """It has ended. To be called once."""
        self._key = key = UsageKey(self._caller, self._model, self._version, outcome)
        counts = self._meter.counts(key)
        counts.requests += 1
        counts.rows += self.rows
        counts.input_bytes += self._input_bytes
        counts.output_bytes += self.output_bytes
        counts.compute_ns += self._compute_ns


class UsageMeter:
    """Adds up charges. Belongs to the event loop."""

    def __init__(self) -> None:
        self._current: dict[UsageKey, _Counts] = {}
        self._taken: dict[UsageKey, UsageFigures] = {}

    def open(self, model: str, version: str, input_bytes: int) -> RequestCharge:
        """Begins to meter a request of the current caller."""
        return RequestCharge(self, model, version, input_bytes)

    def counts(self, key: UsageKey) -> _Counts:
        """What was added since the last ``take``."""
        counts = self._current.get(key)
        if counts is None:
            counts = self._current[key] = _Counts()
        return counts

    def take(self) -> Mapping[UsageKey, UsageFigures]:
        """What was added since this was last called, for whoever keeps it."""
        taken = {key: counts.figures() for key, counts in self._current.items()}
        self._current = {}
        for key, figures in taken.items():
            self._taken[key] = self._taken.get(key, UsageFigures()).plus(figures)
        return taken

    def totals(self) -> Mapping[UsageKey, UsageFigures]:
        """Everything since the node was started."""
        totals = dict(self._taken)
        for key, counts in self._current.items():
            totals[key] = totals.get(key, UsageFigures()).plus(counts.figures())
        return totals
