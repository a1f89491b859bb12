"""A model's counters as ``inference.ModelStatistics``."""

from __future__ import annotations

from collections.abc import Iterable

from core_grpc.models.statistics import Duration, ModelStatistics
from core_grpc.types import ModelSpec
from protos.inference import grpc_service_pb2 as pb


def encode_statistics(models: Iterable[tuple[ModelSpec, ModelStatistics]]) -> pb.ModelStatisticsResponse:
    """The counters of some model versions as a message."""
    return pb.ModelStatisticsResponse(model_stats=[_encode(spec, statistics) for spec, statistics in models])


def _encode(spec: ModelSpec, statistics: ModelStatistics) -> pb.ModelStatistics:
    message = pb.ModelStatistics(
        name=spec.name,
        version=spec.version,
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(statistics.success),
            fail=_duration(statistics.fail),
            queue=_duration(statistics.queue),
            compute_input=_duration(statistics.compute_input),
            compute_infer=_duration(statistics.compute_infer),
            # Cutting the batch and encoding are not measured apart: counted, with no time.
            compute_output=pb.StatisticDuration(count=statistics.compute_infer.count),
            cache_hit=_duration(statistics.cache_hit),
            cache_miss=_duration(statistics.cache_miss),
        ),
    )
    for rows, duration in sorted(statistics.batches.items()):
        message.batch_stats.add(
            batch_size=rows,
            compute_input=pb.StatisticDuration(count=duration.count),
            compute_infer=_duration(duration),
            compute_output=pb.StatisticDuration(count=duration.count),
        )
    for index, responses in statistics.responses.items():
        of_index = message.response_stats[str(index)]
        for name in ("compute_infer", "success", "fail", "empty_response", "cancel"):
            getattr(of_index, name).CopyFrom(_duration(getattr(responses, name)))
        of_index.compute_output.count = responses.compute_infer.count
    return message


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
