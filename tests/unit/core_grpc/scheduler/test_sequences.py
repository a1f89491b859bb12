"""Which sequences are going on, by a clock of the test's own."""

from __future__ import annotations

import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.scheduler.sequences import SequenceCall, SequenceId, SequenceTracker


def step(tracker: SequenceTracker, sequence_id: SequenceId, now: float, flags: str = "") -> None:
    tracker.request(SequenceCall(sequence_id, "s" in flags, "e" in flags), now)


@pytest.mark.parametrize("sequence_id", [1, "a", 1 << 63])
def test_from_start_to_end(sequence_id: SequenceId) -> None:
    tracker = SequenceTracker("m", 1.0)
    step(tracker, sequence_id, 0.0, "s")
    step(tracker, sequence_id, 0.9)
    step(tracker, sequence_id, 1.8)
    step(tracker, sequence_id, 2.7, "e")
    assert len(tracker) == 0
    with pytest.raises(InvalidArgument, match=r"to model 'm' must specify the START flag on the first request of the sequence"):
        step(tracker, sequence_id, 2.8)


def test_silence_ends_a_sequence_and_no_other() -> None:
    tracker = SequenceTracker("m", 1.0)
    step(tracker, 1, 0.0, "s")
    step(tracker, 2, 0.1, "s")
    step(tracker, 1, 0.8)
    step(tracker, 3, 1.2, "s")
    assert len(tracker) == 2
    with pytest.raises(InvalidArgument, match=r"inference request for sequence 2 .* silent for more than 1 s"):
        step(tracker, 2, 1.2)
    step(tracker, 1, 1.8)


def test_a_start_begins_anew_and_one_request_may_be_a_whole_sequence() -> None:
    tracker = SequenceTracker("m", 1.0)
    step(tracker, 1, 0.0, "s")
    step(tracker, 1, 0.1, "s")
    assert len(tracker) == 1
    step(tracker, 2, 0.1, "se")
    assert len(tracker) == 1


def test_a_number_and_the_same_number_as_text_are_two_sequences() -> None:
    tracker = SequenceTracker("m", 1.0)
    step(tracker, 1, 0.0, "s")
    with pytest.raises(InvalidArgument, match="sequence '1'"):
        step(tracker, "1", 0.0)


@pytest.mark.parametrize("sequence_id", [0, ""])
def test_no_id_is_no_sequence(sequence_id: SequenceId) -> None:
    with pytest.raises(InvalidArgument, match="must specify a non-zero or non-empty correlation ID"):
        step(SequenceTracker("m", 1.0), sequence_id, 0.0, "s")
