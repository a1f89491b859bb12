"""What becomes of a request that was admitted: its future is settled once, with an answer or with why there is none."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from core_grpc.errors import BackendFailed, DeadlineExpired, GatewayError

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


def settle(waiter: asyncio.Future[Answer], outcome: Answer | GatewayError) -> None:
    """Gives the outcome to whoever waits; does nothing where nobody does any more."""
    if waiter.done():
        return
    if isinstance(outcome, GatewayError):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


def expired() -> DeadlineExpired:
    """For a request that was not run in time."""
    return DeadlineExpired("the deadline passed before the model could run the request")


def failure_of(error: Exception) -> GatewayError:
    """What the callers are told of an instance's failure."""
    if isinstance(error, GatewayError):
        return error
    # What a backend did not translate may hold paths or values: it goes to the log, the caller gets the kind of failure.
    _log.error("a model instance failed", exc_info=error)
    return BackendFailed("the model failed on this request")
