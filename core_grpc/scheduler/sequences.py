"""Sequences of requests: a sequence begins with a request that says so and ends with one, or when it is silent too long.

Here are their ids and the refusals that they share, and which of them are going on at a model that streams. What runs the sequences of
other models is ``sequence_batcher.py``. Pure: the clock is the caller's.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from core_grpc.errors import InvalidArgument, QueueFull, quoted

SequenceId: TypeAlias = int | str
"""An unsigned number of 64 bits or a text; 0 and the empty text are none. A number and the same number as text are two sequences."""

_MOST_SEQUENCES = 100_000


class SequenceCall(NamedTuple):
    """What a request says about its sequence."""

    sequence_id: SequenceId
    is_start: bool
    is_end: bool


def check_id(model: str, sequence_id: SequenceId) -> None:
    """Whether it is one.

    Raises:
        InvalidArgument: it is 0 or empty.
    """
    if sequence_id in (0, ""):
        raise InvalidArgument(f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID")


def not_started(model: str, sequence_id: SequenceId, max_idle_s: float) -> InvalidArgument:
    """For a request of a sequence that is not going on, and that does not begin one. The words are Triton's as far as they go."""
    shown = quoted(sequence_id) if isinstance(sequence_id, str) else str(sequence_id)
    return InvalidArgument(
        f"inference request for sequence {shown} to model '{model}' must specify the START flag on the first "
        f"request of the sequence (or was silent for more than {max_idle_s:g} s, or lost a request or its stream)"
    )


class SequenceTracker:
    """The live sequences of one model that streams."""

    def __init__(self, model: str, max_idle_s: float) -> None:
        self._model = model
        self._max_idle_s = max_idle_s
        self._last_seen: dict[SequenceId, float] = {}
        """Seconds of the caller's clock, the longest silent first."""

    def __len__(self) -> int:
        return len(self._last_seen)

    def request(self, call: SequenceCall, now: float) -> None:
        """A request of a sequence.

        Raises:
            InvalidArgument: it has no id, or does not begin a sequence that is not going on.
            QueueFull: too many sequences are.
        """
        self._end_silent(now)
        sequence_id = call.sequence_id
        check_id(self._model, sequence_id)
        if not call.is_start and sequence_id not in self._last_seen:
            raise not_started(self._model, sequence_id, self._max_idle_s)
        self._last_seen.pop(sequence_id, None)
        if call.is_end:
            return
        if len(self._last_seen) >= _MOST_SEQUENCES:
            raise QueueFull(f"model '{self._model}' has {_MOST_SEQUENCES} sequences")
        self._last_seen[sequence_id] = now

    def _end_silent(self, now: float) -> None:
        while self._last_seen:
            sequence_id, seen = next(iter(self._last_seen.items()))
            if now - seen <= self._max_idle_s:
                return
            del self._last_seen[sequence_id]
