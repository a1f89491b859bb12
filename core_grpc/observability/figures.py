"""What a node counts, as values: taken on the event loop at one moment, shown as metrics by another thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class DurationFigures:
    """How often something happened, how long it took in all, and a histogram of it."""

    count: int
    ns: int
    buckets: tuple[int, ...]
    """How many fell into each bucket; empty where there is no histogram."""


class ModelFigures(NamedTuple):
    """The counters of one model version since it was loaded."""

    model: str
    version: str
    failures: Mapping[str, int]
    """By reason, each reason with a number."""
    inference_count: int
    """Rows."""
    execution_count: int
    request: DurationFigures
    """Of requests that were answered, as the two below."""
    queue: DurationFigures
    compute: DurationFigures
    compute_input_ns: int
    cache_hit: DurationFigures
    cache_miss: DurationFigures
    batch_rows: Mapping[int, int]
    """Executions by the rows of their batch."""
    engine_ns: int
    """Time that the model's own engine ran; a pipeline has none."""
    in_work: int
    pending: int
    pending_rows: int
    pending_bytes: int


class ModelStateFigure(NamedTuple):
    """The state of one model version of the repository."""

    model: str
    version: str
    state: str


class UsageKey(NamedTuple):
    """Whose usage, of what, and how it ended."""

    caller: str
    model: str
    version: str
    outcome: str
    """``ok``, ``failed`` or ``cancelled``."""


class UsageFigures(NamedTuple):
    """Metered work."""

    requests: int = 0
    rows: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    compute_ns: int = 0

    def plus(self, other: UsageFigures) -> UsageFigures:
        """Both together."""
        return UsageFigures(*map(sum, zip(self, other, strict=True)))


class NodeFigures(NamedTuple):
    """Everything that a scrape shows."""

    is_ready: bool
    bounds_s: Sequence[float]
    """Upper bounds of the histograms of durations."""
    models: Sequence[ModelFigures]
    states: Sequence[ModelStateFigure]
    rpcs: Mapping[tuple[str, str], int]
    """Calls that have ended, by method and status."""
    usage: Mapping[UsageKey, UsageFigures]
    """Since the node was started."""
