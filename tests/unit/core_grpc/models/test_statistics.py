"""Counters that add up, whatever happens in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_grpc.models.statistics import FailureReason, ModelStatistics, watched_stream
from core_grpc.rpc.message_json import plain_json
from core_grpc.rpc.statistics_codec import encode_statistics
from core_grpc.types import ModelSpec

SPEC = ModelSpec("m", "1", "identity", 8, (), ())


@given(st.lists(st.one_of(st.lists(st.integers(1, 8), min_size=1, max_size=8), st.just(None)), max_size=30))
def test_they_add_up(events: list[list[int] | None]) -> None:
    """Each event is a batch of requests with so many rows, or a failure."""
    statistics = ModelStatistics()
    for event in events:
        if event is None:
            statistics.failed(0.5, FailureReason.OTHER)
            continue
        statistics.executed(sum(event), 0.001)
        for rows in event:
            statistics.succeeded(rows, 0.0, 0.002, 0.001)
    batches = [event for event in events if event]
    (message,) = encode_statistics([(SPEC, statistics)]).model_stats
    assert message.execution_count == len(batches) == sum(item.compute_infer.count for item in message.batch_stats)
    assert message.inference_count == sum(map(sum, batches))
    assert sum(item.batch_size * item.compute_infer.count for item in message.batch_stats) == message.inference_count
    assert message.inference_stats.success.count == sum(map(len, batches)) == message.inference_stats.queue.count
    assert message.inference_stats.fail.count == events.count(None)
    assert bool(message.last_inference) == bool(batches)
    assert message.inference_stats.success.ns == message.inference_stats.success.count * 3_000_000


def broken_off(statistics: ModelStatistics, answers: int, error: BaseException) -> None:
    with watched_stream(statistics) as watch:
        for _ in range(answers):
            watch.answered(0.1)
        raise error


def test_answers_of_a_decoupled_model_are_counted_by_index() -> None:
    statistics = ModelStatistics()
    with watched_stream(statistics) as watch:
        watch.answered(0.1)
        watch.answered(0.1)
        watch.ended(1, 0.0)
    for answers, error in ((1, ValueError("no")), (0, GeneratorExit())):
        with pytest.raises(type(error)):
            broken_off(statistics, answers, error)
    counts = {
        index: [item.success.count, item.fail.count, item.empty_response.count, item.cancel.count]
        for index, item in statistics.responses.items()
    }
    assert counts == {0: [2, 0, 0, 1], 1: [1, 1, 0, 0], 2: [0, 0, 1, 0]}
    assert (statistics.success.count, statistics.fail.count, statistics.execution_count) == (1, 2, 1)


def test_a_stream_without_end_does_not_grow_the_counters() -> None:
    statistics = ModelStatistics()
    with watched_stream(statistics) as watch:
        for _ in range(5000):
            watch.answered(0.0)
        watch.ended(1, 0.0)
    assert len(statistics.responses) <= 1001


def test_json_has_numbers_and_every_scalar() -> None:
    answer = plain_json(encode_statistics([(SPEC, ModelStatistics())]))["model_stats"][0]
    assert answer["inference_count"] == 0
    assert answer["inference_stats"]["success"] == {"count": 0, "ns": 0}
    assert answer["batch_stats"] == []
    assert answer["response_stats"] == {}
