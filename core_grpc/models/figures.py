"""What metrics show of the models: read from the counters behind the statistics extension, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Sequence

from core_grpc.models.model import Model
from core_grpc.models.registry import Registry
from core_grpc.models.statistics import Duration, ModelStatistics
from core_grpc.observability.figures import DurationFigures, ModelFigures, ModelStateFigure
from core_grpc.pipelines.step import PIPELINE


def model_figures(registry: Registry) -> Sequence[ModelFigures]:
    """Of every model version that answers: those that the statistics extension lists."""
    return [_figures(model) for model in registry.ready_models()]


def state_figures(registry: Registry) -> Sequence[ModelStateFigure]:
    """Of every model version of the repository."""
    return [ModelStateFigure(entry.name, entry.version, str(entry.state)) for entry in registry.entries()]


def _figures(model: Model) -> ModelFigures:
    statistics, depth = model.statistics, model.queue_depth
    return ModelFigures(
        model=model.spec.name,
        version=model.spec.version,
        failures={str(reason): count for reason, count in statistics.failures.items()},
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
        request=_duration(statistics.success, statistics.success_buckets),
        queue=_duration(statistics.queue, statistics.queue_buckets),
        compute=_duration(statistics.compute_infer, statistics.compute_buckets),
        compute_input_ns=statistics.compute_input.ns,
        cache_hit=_duration(statistics.cache_hit),
        cache_miss=_duration(statistics.cache_miss),
        batch_rows={rows: duration.count for rows, duration in statistics.batches.items()},
        engine_ns=0 if model.backend == PIPELINE else _engine_ns(statistics),
        in_work=model.users,
        pending=depth.requests,
        pending_rows=depth.rows,
        pending_bytes=depth.nbytes,
    )


def _engine_ns(statistics: ModelStatistics) -> int:
    return statistics.failed_runs.ns + sum(duration.ns for duration in statistics.batches.values())


def _duration(duration: Duration, buckets: Sequence[int] = ()) -> DurationFigures:
    return DurationFigures(duration.count, duration.ns, tuple(buckets))
