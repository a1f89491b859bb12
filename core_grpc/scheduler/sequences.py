"""Which sequences of requests are going on: a sequence begins with a request that says so and ends with one, or when it is silent too long.

Pure: the clock is the caller's. What a model keeps between the requests of a sequence is not here.
"""

from __future__ import annotations

from typing import TypeAlias

from core_grpc.errors import InvalidArgument, QueueFull, quoted

SequenceId: TypeAlias = int | str

_MOST_SEQUENCES = 100_000


class SequenceTracker:
    """The live sequences of one model."""

    def __init__(self, model: str, max_idle_s: float) -> None:
        self._model = model
        self._max_idle_s = max_idle_s
        self._last_seen: dict[SequenceId, float] = {}
        """Seconds of the caller's clock, the longest silent first."""

    def __len__(self) -> int:
        return len(self._last_seen)

    def request(self, sequence_id: SequenceId, *, is_start: bool, is_end: bool, now: float) -> None:
        """A request of a sequence.

        Raises:
            InvalidArgument: it has no id, or does not begin a sequence that is not going on.
            QueueFull: too many sequences are.
        """
        self._end_silent(now)
        if sequence_id in (0, ""):
            raise InvalidArgument(f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID")
        if not is_start and sequence_id not in self._last_seen:
            raise InvalidArgument(
                f"inference request for sequence {_shown(sequence_id)} to model '{self._model}' must specify the START flag on the first "
                f"request of the sequence (or was silent for more than {self._max_idle_s:g} s)"
            )
        self._last_seen.pop(sequence_id, None)
        if is_end:
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


def _shown(sequence_id: SequenceId) -> str:
    return quoted(sequence_id) if isinstance(sequence_id, str) else str(sequence_id)
