"""What a model version did since it was loaded: the counters behind Triton's statistics extension.

Integers only, added to once for each request and once for each execution; the meaning of each is that of Triton's documentation
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md). Times are nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from core_grpc.scheduler.dispatcher import Execution

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


class ModelStatistics:
    """The counters of one model version. Belongs to the event loop.

    ``success``, ``fail``, ``queue``, ``compute_input`` and ``compute_infer`` count requests; a request of a batch has the batch's whole
    compute time. ``compute_input`` is preprocessing; copying rows into and out of batches is part of ``compute_infer``. A request
    that the response cache answered counts in ``success`` and ``queue``, and nowhere in what the engine did.
    """

    __slots__ = (
        "batches",
        "cache_hit",
        "cache_miss",
        "compute_infer",
        "compute_input",
        "execution_count",
        "fail",
        "inference_count",
        "last_inference_ms",
        "queue",
        "responses",
        "success",
    )

    def __init__(self) -> None:
        self.success = Duration()
        self.fail = Duration()
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

    def answered(self, rows: int, preprocess_s: float, execution: Execution) -> None:
        """A request has its answer, from the engine or from the response cache."""
        if execution.batch_rows:
            self.succeeded(rows, preprocess_s, execution.queue_s, execution.compute_s)
            return
        self.last_inference_ms = int(time.time() * 1000)
        self.success.add(preprocess_s + execution.queue_s)
        self.queue.add(execution.queue_s)

    def succeeded(self, rows: int, preprocess_s: float, queue_s: float, compute_s: float) -> None:
        """A request has its answer from the engine."""
        self.inference_count += rows
        self.last_inference_ms = int(time.time() * 1000)
        self.success.add(preprocess_s + queue_s + compute_s)
        self.queue.add(queue_s)
        self.compute_input.add(preprocess_s)
        self.compute_infer.add(compute_s)

    def failed(self, seconds: float) -> None:
        """A request for this model version has none, whoever's fault that is; its caller's leaving is one."""
        self.fail.add(seconds)

    def response(self, index: int) -> ResponseStatistics:
        """The counters of answers with ``index``, the last of them for all beyond the limit."""
        index = min(index, _MOST_RESPONSES)
        found = self.responses.get(index)
        if found is None:
            found = self.responses[index] = ResponseStatistics()
        return found


class StreamWatch:
    """One request of a decoupled model, counted as its answers come."""

    def __init__(self, statistics: ModelStatistics) -> None:
        self._statistics = statistics
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

    def broken_off(self, *, is_cancelled: bool) -> None:
        """It failed, or its caller left."""
        self.is_over = True
        seconds = time.monotonic() - self._began
        self._statistics.failed(seconds)
        of_index = self._statistics.response(self._index)
        (of_index.cancel if is_cancelled else of_index.fail).add(seconds)


@contextmanager
def watched_stream(statistics: ModelStatistics) -> Iterator[StreamWatch]:
    """Counts one request of a decoupled model: to be told its answers and its end, it sees failures and departures by itself."""
    watch = StreamWatch(statistics)
    try:
        yield watch
    except Exception:
        watch.broken_off(is_cancelled=False)
        raise
    finally:
        if not watch.is_over:
            watch.broken_off(is_cancelled=True)
