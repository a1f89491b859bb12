"""What goes wrong with user code, as errors for callers; and when a process that keeps failing is started again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from core_grpc.errors import (
    BackendFailed,
    FailedPrecondition,
    GatewayError,
    InvalidArgument,
    ModelNotReady,
    NotFound,
    QueueFull,
    Unsupported,
)

_BY_CODE: Mapping[str, type[GatewayError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "NOT_FOUND": NotFound,
    "FAILED_PRECONDITION": FailedPrecondition,
    "RESOURCE_EXHAUSTED": QueueFull,
    "UNIMPLEMENTED": Unsupported,
    "UNAVAILABLE": ModelNotReady,
    "INTERNAL": BackendFailed,
}
"""By what an ``InferenceError`` may say."""

_FREE_FAILURES = 2
"""A request that kills the process does it twice when it is in a batch: once with the others, once alone. They are not to blame."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0


def user_error(model: str, header: Mapping[str, Any], key: str = "message") -> GatewayError:
    """The error that a process reported."""
    code, text = header["code"], header[key]
    return _BY_CODE[code](f"model '{model}': {text}" if code == "INTERNAL" else str(text))


class Restarts:
    """When the next start is allowed: at once after the first failures, then after a pause that doubles until something works."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    def check(self, model: str) -> None:
        """Raises ModelNotReady while the pause lasts."""
        left_s = self._not_before - time.monotonic()
        if left_s > 0:
            raise ModelNotReady(f"the process of model '{model}' keeps failing: it is started again in {left_s:.1f} s")

    def failed(self) -> None:
        """The process ended, or could not be started."""
        self._failures += 1
        beyond = self._failures - _FREE_FAILURES
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (beyond - 1), _LONGEST_PAUSE_S) if beyond > 0 else 0.0
        self._not_before = time.monotonic() + pause_s

    def worked(self) -> None:
        """It answered."""
        self._failures = 0
