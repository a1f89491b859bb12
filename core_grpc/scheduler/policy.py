"""Queue policies: how important a request is, how long it may wait, and what happens when it has waited too long.

As Triton's ``ModelQueuePolicy`` and ``priority_levels``
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#queue-policy). Pure: no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from core_grpc.errors import InvalidArgument
from core_grpc.types import ParameterValue


class TimeoutAction(StrEnum):
    """What becomes of a request that waited for its level's time-out."""

    REJECT = "reject"
    """It fails with DEADLINE_EXCEEDED."""
    DELAY = "delay"
    """It stands behind all others of its level that have not waited so long; it is still answered."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests of one priority level wait."""

    max_requests: int = 0
    """Requests of the level that may wait; 0 for no limit of its own."""
    timeout_s: float = 0.0
    """The longest wait; 0 for none."""
    timeout_action: TimeoutAction = TimeoutAction.REJECT
    allow_timeout_override: bool = True
    """Whether a request's parameter ``timeout`` may shorten the wait. It never lengthens it."""


class Terms(NamedTuple):
    """What a policy makes of one request."""

    level: int
    """0 is the most important."""
    deadline: float | None
    """The moment after which it fails; None for never."""
    delay_at: float
    """The moment from which it stands behind the others of its level; infinite for never."""


@dataclass(frozen=True, slots=True)
class QueuePolicies:
    """The levels of one model and their policies."""

    priority_levels: int = 0
    """0 where requests have no priority."""
    default_priority_level: int = 0
    """Of requests that name none; 1 to ``priority_levels``."""
    default: QueuePolicy = field(default_factory=QueuePolicy)
    by_level: Mapping[int, QueuePolicy] = field(default_factory=dict)
    """By priority level (1 to ``priority_levels``); the default elsewhere."""

    @property
    def level_count(self) -> int:
        """Levels that the queue keeps apart, at least one."""
        return max(self.priority_levels, 1)

    @property
    def is_plain(self) -> bool:
        """Whether it says nothing beyond what every model has: one level, no time-out, the parameter ``timeout`` allowed."""
        return self.priority_levels == 0 and self.default.timeout_s == 0 and self.default.allow_timeout_override

    @property
    def delays(self) -> bool:
        """Whether any level has the action DELAY."""
        return any(policy.timeout_action is TimeoutAction.DELAY for policy in self.policies())

    def policies(self) -> list[QueuePolicy]:
        """One for each level, the most important first."""
        return [self.by_level.get(level + 1, self.default) for level in range(self.level_count)]

    def terms(self, parameters: Mapping[str, ParameterValue], deadline: float | None, now: float) -> Terms:
        """What holds for a request with these parameters (``priority``, ``timeout`` in microseconds) that arrives now.

        Raises:
            InvalidArgument: a priority that the model does not have.
        """
        level = self._level(parameters.get("priority", 0)) if self.priority_levels else 0
        policy = self.by_level.get(level + 1, self.default)
        timeout_s = _timeout_s(policy, parameters.get("timeout", 0))
        if not timeout_s:
            return Terms(level, deadline, math.inf)
        ends = now + timeout_s
        if policy.timeout_action is TimeoutAction.DELAY:
            return Terms(level, deadline, ends)
        return Terms(level, ends if deadline is None else min(ends, deadline), math.inf)

    def _level(self, priority: ParameterValue) -> int:
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= self.priority_levels:
            raise InvalidArgument(
                f"parameter 'priority': wanted 1 (the most important) to {self.priority_levels}, or 0 for the default, got {priority}"
            )
        return (priority or self.default_priority_level) - 1


def queue_deadline(parameters: Mapping[str, ParameterValue], deadline: float | None, now: float) -> float | None:
    """As ``terms`` of a plain policy: the parameter ``timeout`` (microseconds) from now, or the deadline if that is earlier."""
    timeout_us = parameters.get("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us <= 0:
        return deadline
    ends = now + timeout_us / 1e6
    return ends if deadline is None else min(ends, deadline)


def _timeout_s(policy: QueuePolicy, timeout_us: ParameterValue) -> float:
    if not policy.allow_timeout_override or isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us <= 0:
        return policy.timeout_s
    wanted_s = timeout_us / 1e6
    return min(wanted_s, policy.timeout_s) if policy.timeout_s else wanted_s
