"""What the sequence batcher knows of sequences and their requests, and the limits that it keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from core_grpc.scheduler.sequences import SequenceCall, SequenceId


class Strategy(StrEnum):
    """How the sequences of an instance share its batches: Triton's words."""

    DIRECT = "direct"
    """Each has a place of its own in the batch, which never changes."""
    OLDEST = "oldest"
    """More of them than a batch has room for; batches are made of the oldest requests."""


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """How many sequences and requests there may be, and what is worth waiting for."""

    model: str
    """Named in refusals."""
    strategy: Strategy
    instances: int
    slots: int
    """Sequences that an instance holds."""
    max_batch_size: int
    """Requests of a batch, at least 1; for DIRECT as many as slots."""
    enough: int
    """Requests that are due without waiting for more."""
    max_queue_delay_s: float
    max_idle_s: float
    max_queue_requests: int
    max_queue_bytes: int


class SequenceRequest:
    """What the batcher knows of a request. Users derive from it and add what they need."""

    __slots__ = ("arrival", "call", "deadline", "group", "nbytes", "sequence", "stream", "ticket")

    def __init__(  # noqa: PLR0917 (made for every request)
        self, call: SequenceCall, nbytes: int, group: Hashable, deadline: float, arrival: float, stream: Hashable = None
    ) -> None:
        self.call = call
        self.nbytes = nbytes
        self.group = group
        """Equal for requests that may share a batch."""
        self.deadline = deadline
        """Infinite for none."""
        self.arrival = arrival
        self.stream = stream
        """The stream that it came on; None for a request of its own."""
        self.ticket = 0
        self.sequence: LiveSequence[Any] = _NOWHERE


Request = TypeVar("Request", bound=SequenceRequest)


class LiveSequence(Generic[Request]):
    """A sequence that is going on. ``state`` and ``state_group`` are the instance's that holds it."""

    __slots__ = ("executing", "instance", "is_open", "sequence_id", "slot", "state", "state_group", "stream", "waiting")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.sequence_id = sequence_id
        self.waiting: deque[Request] = deque()
        self.executing: Request | None = None
        self.instance = -1
        """-1 in the backlog."""
        self.slot = -1
        self.is_open = False
        """Whether a request without START may follow what is there."""
        self.stream: Hashable = None
        """The stream of its last START."""
        self.state: Any = None
        """What the next request needs of the last one; None at the start."""
        self.state_group: Hashable = None
        """Equal for states that may share a batch."""


_NOWHERE: LiveSequence[Any] = LiveSequence(0)
