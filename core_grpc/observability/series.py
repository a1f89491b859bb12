"""Every series that ``/metrics`` shows, as a table: name, kind, labels, meaning, and where its values come from.

Names, labels and units that Triton has are Triton's (https://github.com/triton-inference-server/server/blob/main/docs/user_guide/metrics.md).
Label values are names from the model repository, from our own tables, and key ids that the edge vouches for: none is a client's choice.
docs/operating.md has the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from core_grpc.observability.figures import DurationFigures, ModelFigures, NodeFigures, UsageFigures

_NS = 1_000_000_000
_US = 1_000


class HistogramValue(NamedTuple):
    """One histogram."""

    bounds: Sequence[float]
    buckets: Sequence[int]
    """One more than there are bounds: how many fell between each and the one before; not added up."""
    total: float


Value: TypeAlias = int | float | HistogramValue
Samples: TypeAlias = Iterable[tuple[tuple[str, ...], Value]]
"""Label values and value."""


class Series(NamedTuple):
    """A metric family."""

    name: str
    """As queries write it; of a histogram without ``_bucket``."""
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    labels: tuple[str, ...]
    text: str
    read: Callable[[NodeFigures], Samples]


_MODEL = ("model", "version")
_USAGE = ("caller", "model", "version", "outcome")


def _of_models(read: Callable[[ModelFigures], Value | None]) -> Callable[[NodeFigures], Samples]:
    def samples(node: NodeFigures) -> Iterator[tuple[tuple[str, ...], Value]]:
        for item in node.models:
            if (value := read(item)) is not None:
                yield (item.model, item.version), value

    return samples


def _durations(read: Callable[[ModelFigures], DurationFigures]) -> Callable[[NodeFigures], Samples]:
    """Models that were never asked have no histogram: hundreds of idle ones would be most of a scrape."""

    def samples(node: NodeFigures) -> Iterator[tuple[tuple[str, ...], Value]]:
        for item in node.models:
            duration = read(item)
            if duration.count:
                yield (item.model, item.version), HistogramValue(node.bounds_s, duration.buckets, duration.ns / _NS)

    return samples


_ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _batch_rows(item: ModelFigures) -> HistogramValue | None:
    if not item.batch_rows:
        return None
    buckets = [0] * (len(_ROW_BOUNDS) + 1)
    for rows, count in item.batch_rows.items():
        buckets[next((index for index, bound in enumerate(_ROW_BOUNDS) if rows <= bound), len(_ROW_BOUNDS))] += count
    return HistogramValue(_ROW_BOUNDS, buckets, sum(rows * count for rows, count in item.batch_rows.items()))


def _failures(node: NodeFigures) -> Samples:
    return (((item.model, item.version, reason), count) for item in node.models for reason, count in item.failures.items())


def _cached(read: Callable[[ModelFigures], int]) -> Callable[[NodeFigures], Samples]:
    """Of models that the response cache was asked for."""
    return _of_models(lambda item: read(item) if item.cache_hit.count or item.cache_miss.count else None)


def _usage(read: Callable[[UsageFigures], float]) -> Callable[[NodeFigures], Samples]:
    return lambda node: ((tuple(key), read(figures)) for key, figures in node.usage.items())


def _rpcs(node: NodeFigures) -> Samples:
    return node.rpcs.items()


SERIES: tuple[Series, ...] = (
    Series("nv_inference_request_success", "counter", _MODEL, "Requests that were answered.", _of_models(lambda m: m.request.count)),
    Series(
        "nv_inference_request_failure",
        "counter",
        (*_MODEL, "reason"),
        "Requests without an answer: REJECTED (not run: no room, no time left, going away), CANCELED (the caller left), BACKEND (the "
        "engine failed), OTHER (it did not fit the model).",
        _failures,
    ),
    Series("nv_inference_count", "counter", _MODEL, "Rows that the engine answered.", _of_models(lambda m: m.inference_count)),
    Series("nv_inference_exec_count", "counter", _MODEL, "Runs of the engine that gave a result.", _of_models(lambda m: m.execution_count)),
    Series("nv_inference_pending_request_count", "gauge", _MODEL, "Requests that wait for an instance.", _of_models(lambda m: m.pending)),
    Series(
        "nv_inference_request_duration_us",
        "counter",
        _MODEL,
        "Time of answered requests in all, microseconds.",
        _of_models(lambda m: m.request.ns // _US),
    ),
    Series(
        "nv_inference_queue_duration_us",
        "counter",
        _MODEL,
        "Of it, waiting for an instance, microseconds.",
        _of_models(lambda m: m.queue.ns // _US),
    ),
    Series(
        "nv_inference_compute_input_duration_us",
        "counter",
        _MODEL,
        "Of it, preprocessing, microseconds.",
        _of_models(lambda m: m.compute_input_ns // _US),
    ),
    Series(
        "nv_inference_compute_infer_duration_us",
        "counter",
        _MODEL,
        "Of it, the engine, with batches stacked and cut, microseconds; each request of a batch has the batch's time.",
        _of_models(lambda m: m.compute.ns // _US),
    ),
    Series(
        "nv_inference_compute_output_duration_us",
        "counter",
        _MODEL,
        "Always 0: cutting a batch is part of compute_infer.",
        _of_models(lambda _: 0),
    ),
    Series(
        "nv_cache_num_hits_per_model", "counter", _MODEL, "Requests that the response cache answered.", _cached(lambda m: m.cache_hit.count)
    ),
    Series("nv_cache_num_misses_per_model", "counter", _MODEL, "Requests that it did not.", _cached(lambda m: m.cache_miss.count)),
    Series("nv_cache_hit_duration_per_model", "counter", _MODEL, "Time of hits, microseconds.", _cached(lambda m: m.cache_hit.ns // _US)),
    Series(
        "nv_cache_miss_duration_per_model",
        "counter",
        _MODEL,
        "Time of looking and keeping on misses, microseconds.",
        _cached(lambda m: m.cache_miss.ns // _US),
    ),
    Series("tensorgate_request_duration_seconds", "histogram", _MODEL, "Time of answered requests.", _durations(lambda m: m.request)),
    Series("tensorgate_queue_duration_seconds", "histogram", _MODEL, "Of it, waiting for an instance.", _durations(lambda m: m.queue)),
    Series("tensorgate_compute_duration_seconds", "histogram", _MODEL, "Of it, the engine.", _durations(lambda m: m.compute)),
    Series("tensorgate_batch_rows", "histogram", _MODEL, "Rows of the batches that ran.", _of_models(_batch_rows)),
    Series(
        "tensorgate_engine_seconds_total",
        "counter",
        _MODEL,
        "Time that the model's engine ran, once for each batch, failed runs included; what usage adds up to.",
        _of_models(lambda m: m.engine_ns / _NS),
    ),
    Series("tensorgate_requests_in_work", "gauge", _MODEL, "Requests that have the model in hand.", _of_models(lambda m: m.in_work)),
    Series("tensorgate_queue_rows", "gauge", _MODEL, "Rows that wait for an instance.", _of_models(lambda m: m.pending_rows)),
    Series("tensorgate_queue_bytes", "gauge", _MODEL, "Bytes of input that wait for an instance.", _of_models(lambda m: m.pending_bytes)),
    Series(
        "tensorgate_model_state",
        "gauge",
        (*_MODEL, "state"),
        "1 for the state that a model version of the repository is in.",
        lambda node: ((tuple(item), 1) for item in node.states),
    ),
    Series("tensorgate_ready", "gauge", (), "1 while the node is ready.", lambda node: [((), int(node.is_ready))]),
    Series(
        "tensorgate_rpcs_total",
        "counter",
        ("method", "code"),
        "Calls that have ended, by gRPC method and status. REST calls are those of tensorgate.rest.v1.Rest.",
        _rpcs,
    ),
    Series("tensorgate_usage_requests_total", "counter", _USAGE, "Metered requests since the start.", _usage(lambda u: u.requests)),
    Series("tensorgate_usage_rows_total", "counter", _USAGE, "Their rows.", _usage(lambda u: u.rows)),
    Series("tensorgate_usage_input_bytes_total", "counter", _USAGE, "Their input tensors.", _usage(lambda u: u.input_bytes)),
    Series("tensorgate_usage_output_bytes_total", "counter", _USAGE, "Their output tensors.", _usage(lambda u: u.output_bytes)),
    Series("tensorgate_usage_compute_seconds_total", "counter", _USAGE, "Their engine time.", _usage(lambda u: u.compute_ns / _NS)),
)

LOOP_LAG = Series(
    "tensorgate_event_loop_lag_seconds", "gauge", (), "How long this scrape's question waited for the event loop.", lambda _: ()
)
"""Its value comes with the scrape."""


def by_name() -> Mapping[str, Series]:
    """Every series of our own; the process's (``process_*``) are prometheus_client's."""
    return {series.name: series for series in (*SERIES, LOOP_LAG)}
