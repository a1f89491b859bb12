"""What a model version did since it was loaded: the counters behind Triton's statistics extension.

Integers only, added to once for each request and once for each execution; the meaning of each is that of Triton's documentation
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md). Times are nanoseconds.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from core_grpc.errors import BackendFailed, Cancelled, DeadlineExpired, ModelNotReady, QueueFull, ServerDraining
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.types import Charge

BUCKET_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms of durations."""

_NS = 1_000_000_000
_MOST_RESPONSES = 1000
"""Answers of one request that are counted each by its index. Beyond, a stream could grow the counters without end."""


class Duration:
    """How often something happened and how long it took in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, seconds: float) -> None:
        """Once more."""
        self.count += 1
        self.ns += int(seconds * _NS)


class ResponseStatistics:
    """The answers of a decoupled model that have one index among the answers to their requests."""

    __slots__ = ("cancel", "compute_infer", "empty_response", "fail", "success")

    def __init__(self) -> None:
        self.compute_infer = Duration()
        self.success = Duration()
        """Answers with outputs."""
        self.fail = Duration()
        """Requests that failed where this answer would have been."""
        self.empty_response = Duration()
        """Requests that ended, with no more to say, where this answer would have been."""
        self.cancel = Duration()
        """Requests whose caller left before this answer."""


class FailureReason(StrEnum):
    """Why a request has no answer, in Triton's words for it."""

    REJECTED = "REJECTED"
    """It was not run: no room, no time left, or the model or the server was going away."""
    CANCELED = "CANCELED"
    """Its caller left."""
    BACKEND = "BACKEND"
    """The engine failed on it."""
    OTHER = "OTHER"
    """It did not fit its model, or anything else."""


_REASONS: tuple[tuple[tuple[type[BaseException], ...], FailureReason], ...] = (
    ((QueueFull, DeadlineExpired, ModelNotReady, ServerDraining), FailureReason.REJECTED),
    ((asyncio.CancelledError, GeneratorExit, Cancelled), FailureReason.CANCELED),
    ((BackendFailed,), FailureReason.BACKEND),
)


def failure_reason(error: BaseException) -> FailureReason:
    """The reason that a request which ended with ``error`` is counted under."""
    return next((reason for kinds, reason in _REASONS if isinstance(error, kinds)), FailureReason.OTHER)


class ModelStatistics:
    """The counters of one model version. Belongs to the event loop.

    ``success``, ``fail``, ``queue``, ``compute_input`` and ``compute_infer`` count requests; a request of a batch has the batch's whole
    compute time. ``compute_input`` is preprocessing; copying rows into and out of batches is part of ``compute_infer``. A request
    that the response cache answered counts in ``success`` and ``queue``, and nowhere in what the engine did.

    ``success_buckets``, ``queue_buckets`` and ``compute_buckets`` are histograms of the durations of the same names: how many were at
    most each of ``BUCKET_BOUNDS_S`` and more than the one before, with those beyond the last at the end.
    """

    __slots__ = (
        "batches",
        "cache_hit",
        "cache_miss",
        "compute_buckets",
        "compute_infer",
        "compute_input",
        "execution_count",
        "fail",
        "failed_runs",
        "failures",
        "inference_count",
        "last_inference_ms",
        "queue",
        "queue_buckets",
        "responses",
        "success",
        "success_buckets",
    )

    def __init__(self) -> None:
        self.success = Duration()
        self.fail = Duration()
        self.failures = dict.fromkeys(FailureReason, 0)
        """The requests of ``fail`` by reason."""
        self.failed_runs = Duration()
        """Runs of the engine that ended without a result, a stream that was broken off among them. All others are in ``batches``."""
        self.success_buckets, self.queue_buckets, self.compute_buckets = ([0] * (len(BUCKET_BOUNDS_S) + 1) for _ in range(3))
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.cache_hit = Duration()
        """Requests that the response cache answered, and the time until the answer was found."""
        self.cache_miss = Duration()
        """Requests that it did not, and the time that looking and keeping the answer took."""
        self.inference_count = 0
        """Rows of the requests that ran and succeeded."""
        self.execution_count = 0
        """Runs of the engine."""
        self.last_inference_ms = 0
        """Milliseconds since the epoch; 0 for never."""
        self.batches: dict[int, Duration] = {}
        """Executions by the rows of their batch."""
        self.responses: dict[int, ResponseStatistics] = {}
        """Of a decoupled model, by the index of the answer."""

    def continue_from(self, earlier: ModelStatistics) -> None:
        """Counts on from what another object had counted, which nobody adds to any more."""
        for name in self.__slots__:
            setattr(self, name, getattr(earlier, name))

    def executed(self, rows: int, compute_s: float) -> None:
        """The engine ran a batch."""
        self.execution_count += 1
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = Duration()
        batch.add(compute_s)

    def run_failed(self, compute_s: float) -> None:
        """The engine ran and gave no result."""
        self.failed_runs.add(compute_s)

    def answered(self, rows: int, preprocess_s: float, execution: Execution) -> None:
        """A request has its answer, from the engine or from the response cache."""
        if execution.batch_rows:
            self.succeeded(rows, preprocess_s, execution.queue_s, execution.compute_s)
            return
        self.last_inference_ms = int(time.time() * 1000)
        self._took(preprocess_s + execution.queue_s, execution.queue_s)

    def succeeded(self, rows: int, preprocess_s: float, queue_s: float, compute_s: float) -> None:
        """A request has its answer from the engine."""
        self.inference_count += rows
        self.last_inference_ms = int(time.time() * 1000)
        self._took(preprocess_s + queue_s + compute_s, queue_s)
        self.compute_input.add(preprocess_s)
        self.compute_infer.add(compute_s)
        self.compute_buckets[bisect_left(BUCKET_BOUNDS_S, compute_s)] += 1

    def _took(self, seconds: float, queue_s: float) -> None:
        self.success.add(seconds)
        self.success_buckets[bisect_left(BUCKET_BOUNDS_S, seconds)] += 1
        self.queue.add(queue_s)
        self.queue_buckets[bisect_left(BUCKET_BOUNDS_S, queue_s)] += 1

    def failed(self, seconds: float, reason: FailureReason) -> None:
        """A request for this model version has none, whoever's fault that is; its caller's leaving is one."""
        self.fail.add(seconds)
        self.failures[reason] += 1

    def response(self, index: int) -> ResponseStatistics:
        """The counters of answers with ``index``, the last of them for all beyond the limit."""
        index = min(index, _MOST_RESPONSES)
        found = self.responses.get(index)
        if found is None:
            found = self.responses[index] = ResponseStatistics()
        return found


class StreamWatch:
    """One request of a decoupled model, counted as its answers come."""

    def __init__(self, statistics: ModelStatistics, charge: Charge | None) -> None:
        self._statistics = statistics
        self._charge = charge
        self._began = time.monotonic()
        self._index = 0
        self._compute_s = 0.0
        self.is_over = False

    def answered(self, compute_s: float) -> None:
        """The next answer is there; ``compute_s`` since the one before."""
        self._compute_s += compute_s
        of_index = self._statistics.response(self._index)
        of_index.compute_infer.add(compute_s)
        of_index.success.add(compute_s)
        self._index += 1

    def ended(self, rows: int, preprocess_s: float) -> None:
        """The model has given all its answers."""
        self.is_over = True
        self._statistics.executed(rows, self._compute_s)
        self._statistics.succeeded(rows, preprocess_s, 0.0, self._compute_s)
        self._statistics.response(self._index).empty_response.add(0.0)
        self._add_charge()

    def broken_off(self, error: BaseException) -> None:
        """It failed, or its caller left."""
        self.is_over = True
        seconds = time.monotonic() - self._began
        reason = failure_reason(error)
        self._statistics.failed(seconds, reason)
        self._statistics.run_failed(self._compute_s)
        of_index = self._statistics.response(self._index)
        (of_index.cancel if reason is FailureReason.CANCELED else of_index.fail).add(seconds)
        self._add_charge()

    def _add_charge(self) -> None:
        if self._charge:
            self._charge.add_compute(int(self._compute_s * _NS))


@contextmanager
def watched_stream(statistics: ModelStatistics, charge: Charge | None = None) -> Iterator[StreamWatch]:
    """Counts one request of a decoupled model: to be told its answers and its end, it sees failures and departures by itself."""
    watch = StreamWatch(statistics, charge)
    try:
        yield watch
    except BaseException as error:
        if not watch.is_over:
            watch.broken_off(error)
        raise
