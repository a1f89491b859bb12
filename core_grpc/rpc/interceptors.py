"""What happens around every RPC: a failure gets its status here, and nowhere else.

Applied to the method table once, so both transports serve guarded handlers. What leaves a guarded handler as an exception is an
``RpcFailure`` (the transport gives it its wire form) or ``asyncio.CancelledError`` (the caller has left).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from core_grpc.errors import STATUS, GatewayError, StatusCode
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.methods import RpcMethod, StreamHandler, UnaryHandler

log = logging.getLogger(__name__)


class RpcFailure(Exception):
    """An RPC's status when it is not OK, with the line for the caller."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def wire_status(error: RpcFailure | GatewayError) -> tuple[StatusCode, str]:
    """The status and the line for the caller; ``GatewayError`` comes from the transport itself, before a handler has the request."""
    return (error.code, error.message) if isinstance(error, RpcFailure) else (STATUS[type(error)], error.message)


def guarded(method: RpcMethod) -> RpcMethod:
    """The method with its handler's exceptions turned into ``RpcFailure``.

    The text of an exception that is not ours is for the log; the caller gets "internal error" and the request's id.
    """
    if method.streams_responses:
        return replace(method, handler=_guarded_stream(method.path, cast("StreamHandler", method.handler)))
    return replace(method, handler=_guarded_unary(method.path, cast("UnaryHandler", method.handler)))


def _guarded_unary(path: str, handler: UnaryHandler) -> UnaryHandler:
    async def call(request: Any, context: RpcContext) -> Any:
        try:
            return await handler(request, context)
        except Exception as error:
            raise failure_of(path, error, context) from error

    return call


def _guarded_stream(path: str, handler: StreamHandler) -> StreamHandler:
    async def call(request: Any, context: RpcContext) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(handler(request, context)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            raise failure_of(path, error, context) from error

    return call


def failure_of(path: str, error: Exception, context: RpcContext) -> RpcFailure:
    """An exception as what the caller may know of it; what is not ours goes to the log."""
    if isinstance(error, RpcFailure):
        return error
    if isinstance(error, GatewayError):
        log.debug("%s failed: %s", path, error.message, extra={"request_id": context.request_id})
        return RpcFailure(STATUS[type(error)], error.message)
    # The exception is here as a value: this is no handler.
    log.error("%s raised", path, exc_info=error, extra={"request_id": context.request_id})
    return RpcFailure(StatusCode.INTERNAL, f"internal error (request {context.request_id})")
