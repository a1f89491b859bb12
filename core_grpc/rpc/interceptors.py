"""What happens around every RPC: a failure gets its status here, and nowhere else.

Applied to the method table once, so both transports serve guarded handlers. What leaves a guarded handler as an exception is an
``RpcFailure`` (the transport gives it its wire form) or ``asyncio.CancelledError`` (the caller has left).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, cast

from core_grpc.errors import STATUS, GatewayError, QueueFull, StatusCode
from core_grpc.observability.rpc_counts import RpcCounts
from core_grpc.rpc.admission import Admission
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.methods import RpcMethod, StreamHandler, UnaryHandler

_LONGEST_RETRY_S = 60.0
_EVERYBODY = Admission(is_metered=False, is_required=False, keys=None)

log = logging.getLogger(__name__)


class RpcFailure(Exception):
    """An RPC's status when it is not OK, with the line for the caller."""

    def __init__(self, code: StatusCode, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        """When trying again may help; None where it will not, or nobody knows."""


class WireStatus(NamedTuple):
    """How a failure goes over the wire."""

    code: StatusCode
    text: str
    """The line for the caller."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Trailing metadata; through the edge, HTTP headers."""


def wire_status(error: RpcFailure | GatewayError) -> WireStatus:
    """The status of a failure; a ``GatewayError`` comes from the transport itself, before a handler has the request."""
    if isinstance(error, GatewayError):
        return WireStatus(STATUS[type(error)], error.message)
    return WireStatus(error.code, error.message, _retry_hint(error.retry_after_s))


def _retry_hint(retry_after_s: float | None) -> tuple[tuple[str, str], ...]:
    """When to try again, for HTTP clients (whole seconds, RFC 9110) and for gRPC clients with a retry policy
    (https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback)."""
    if retry_after_s is None:
        return ()
    capped = min(retry_after_s, _LONGEST_RETRY_S)
    return (("retry-after", str(max(1, math.ceil(capped)))), ("grpc-retry-pushback-ms", str(max(1, math.ceil(capped * 1000)))))


def guarded(method: RpcMethod, counts: RpcCounts | None = None, admission: Admission | None = None) -> RpcMethod:
    """The method with its handler's exceptions turned into ``RpcFailure``, its calls counted, and their callers admitted, and so known to
    what they run.

    The text of an exception that is not ours is for the log; the caller gets "internal error" and the request's id.
    """
    counted = (counts or RpcCounts()).of(method.path)
    admission = admission or _EVERYBODY
    if method.streams_responses:
        return replace(method, handler=_guarded_stream(method.path, cast("StreamHandler", method.handler), counted, admission))
    return replace(method, handler=_guarded_unary(method.path, cast("UnaryHandler", method.handler), counted, admission))


def _guarded_unary(path: str, handler: UnaryHandler, counted: list[int], admission: Admission) -> UnaryHandler:
    async def call(request: Any, context: RpcContext) -> Any:
        try:
            admission.admit(path, context)
            response = await handler(request, context)
        except Exception as error:
            failure = failure_of(path, error, context)
            counted[failure.code] += 1
            raise failure from error
        except asyncio.CancelledError:
            counted[StatusCode.CANCELLED] += 1
            raise
        counted[0] += 1
        return response

    return call


def _guarded_stream(path: str, handler: StreamHandler, counted: list[int], admission: Admission) -> StreamHandler:
    async def call(request: Any, context: RpcContext) -> AsyncGenerator[Any, None]:
        try:
            admission.admit(path, context)
            async with aclosing(handler(request, context)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            failure = failure_of(path, error, context)
            counted[failure.code] += 1
            raise failure from error
        except (asyncio.CancelledError, GeneratorExit):
            counted[StatusCode.CANCELLED] += 1
            raise
        counted[0] += 1

    return call


def failure_of(path: str, error: Exception, context: RpcContext) -> RpcFailure:
    """An exception as what the caller may know of it; what is not ours goes to the log."""
    if isinstance(error, RpcFailure):
        return error
    if isinstance(error, GatewayError):
        log.debug("%s failed: %s", path, error.message, extra={"request_id": context.request_id})
        return RpcFailure(STATUS[type(error)], error.message, error.retry_after_s if isinstance(error, QueueFull) else None)
    # The exception is here as a value: this is no handler.
    log.error("%s raised", path, exc_info=error, extra={"request_id": context.request_id})
    return RpcFailure(StatusCode.INTERNAL, f"internal error (request {context.request_id})")
