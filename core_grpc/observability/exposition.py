"""Figures as text for Prometheus: its own format, or OpenMetrics for who asks for that."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from core_grpc.observability.figures import NodeFigures
from core_grpc.observability.series import LOOP_LAG, SERIES, HistogramValue, Series

_process = ProcessCollector(registry=None)


def exposition(figures: NodeFigures, loop_lag_s: float, accept: str) -> tuple[bytes, str]:
    """A scrape's body and its content type, for an Accept header. Takes milliseconds for each hundred models: not for the event loop."""
    encode, content_type = choose_encoder(accept)
    body = encode(_Figures(figures, loop_lag_s))
    # Triton's counters do not end in _total, which the library takes no other counter without. They go through it as untyped.
    return (body if "openmetrics" in content_type else re.sub(rb"(?m)^(# TYPE nv_\w+) untyped$", rb"\1 counter", body)), content_type


class _Figures(Collector):
    def __init__(self, figures: NodeFigures, loop_lag_s: float) -> None:
        self._figures = figures
        self._loop_lag_s = loop_lag_s

    def collect(self) -> Iterator[Metric]:
        for series in SERIES:
            yield _family(series, self._figures)
        lag = Metric(LOOP_LAG.name, LOOP_LAG.text, LOOP_LAG.kind)
        lag.add_sample(LOOP_LAG.name, {}, self._loop_lag_s)
        yield lag
        yield from _process.collect()


def _family(series: Series, figures: NodeFigures) -> Metric:
    is_untyped = series.kind == "counter" and not series.name.endswith("_total")
    family = Metric(series.name.removesuffix("_total"), series.text, "unknown" if is_untyped else series.kind)
    for values, value in series.read(figures):
        labels = dict(zip(series.labels, values, strict=True))
        if isinstance(value, HistogramValue):
            _add_histogram(family, series.name, labels, value)
        else:
            family.add_sample(series.name, labels, value)
    return family


def _add_histogram(family: Metric, name: str, labels: dict[str, str], value: HistogramValue) -> None:
    count, bounds = 0, (*value.bounds, math.inf)
    for bound, bucket in zip(bounds, value.buckets, strict=True):
        count += bucket
        family.add_sample(f"{name}_bucket", {**labels, "le": "+Inf" if bound == math.inf else str(float(bound))}, count)
    family.add_sample(f"{name}_count", labels, count)
    family.add_sample(f"{name}_sum", labels, value.total)
