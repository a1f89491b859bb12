"""Every error leaves the facade as ``{"code", "message", "details"}``, google.rpc.Status as JSON: the form of every ``/v1`` door.

The HTTP status follows from the code by the canonical table (https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto),
which is the edge's too. What HTTP itself refuses (404, 405, 413) keeps its HTTP status and gets the code that says the same.

Text from the core is passed on: it is written for callers. Text that gRPC makes up on this side is not (it names sockets and
addresses), nor is that of an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

import grpc
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rest_facade.security import API_HEADERS

HTTP_STATUS: Mapping[int, int] = {
    0: 200,  # OK
    1: 499,  # CANCELLED
    2: 500,  # UNKNOWN
    3: 400,  # INVALID_ARGUMENT
    4: 504,  # DEADLINE_EXCEEDED
    5: 404,  # NOT_FOUND
    6: 409,  # ALREADY_EXISTS
    7: 403,  # PERMISSION_DENIED
    8: 429,  # RESOURCE_EXHAUSTED
    9: 400,  # FAILED_PRECONDITION
    10: 409,  # ABORTED
    11: 400,  # OUT_OF_RANGE
    12: 501,  # UNIMPLEMENTED
    13: 500,  # INTERNAL
    14: 503,  # UNAVAILABLE
    15: 500,  # DATA_LOSS
    16: 401,  # UNAUTHENTICATED
}
"""By google.rpc.Code."""

_CODE_OF_HTTP: Mapping[int, int] = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 409: 10, 413: 8, 415: 3, 422: 3, 429: 8, 501: 12, 503: 14}

_LOCAL_TEXT: Mapping[int, str] = {
    1: "the request was cancelled",
    4: "the core did not answer in time",
    8: "the message to or from the core is larger than this server allows",
    14: "the core cannot be reached: it is starting, stopped or restarting",
}
"""What gRPC on this side of the wire means, in our words."""

_MADE_HERE = re.compile(
    r"^CLIENT: |^Deadline Exceeded$|^CANCELLED$|^Locally cancelled|\b(?:ipv4|ipv6|unix|dns|recvmsg|sendmsg|errno)\b:?|"
    r"\bto connect\b|\bsocket closed\b|\bconnection (?:reset|closed|refused|aborted)\b|\bbroken pipe\b|\bGOAWAY\b|RST_STREAM|"
    r"\bname resolution\b|\bkeepalive\b|\bending stream\b|\btransport\b|\bstream removed\b|\bupstream\b",
    re.IGNORECASE,
)
"""How texts that gRPC makes up on this side are known: nothing else in a failure tells who wrote it."""

_INTERNAL = "internal error"

Handler: TypeAlias = Callable[[Request, Any], Coroutine[Any, Any, Response]]


class FacadeError(Exception):
    """A request refused by the facade itself. ``message`` is one line for the caller."""

    def __init__(self, code: int, message: str, http_status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status
        """None: the code's own."""


def invalid_argument(message: str) -> FacadeError:
    """What the caller sent is wrong; ``message`` names the field, what was wanted and what came."""
    return FacadeError(3, message)


def error_response(code: int, message: str, http_status: int | None = None, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The one form of an error."""
    body = {"code": code, "message": message, "details": []}
    return JSONResponse(body, HTTP_STATUS[code] if http_status is None else http_status, {**API_HEADERS, **(headers or {})})


def rpc_failure(error: grpc.aio.AioRpcError) -> tuple[int, str]:
    """The code of a failed RPC, and the text that a caller may see."""
    code = int(error.code().value[0])
    text = error.details() or _INTERNAL
    # A server gives UNKNOWN when a handler raised what nobody foresaw; the text is the exception's.
    if code == grpc.StatusCode.UNKNOWN.value[0]:
        return code, _INTERNAL
    return code, _LOCAL_TEXT.get(code, _INTERNAL) if _MADE_HERE.search(text) else text


async def _on_rpc_failure(_request: Request, error: grpc.aio.AioRpcError) -> Response:
    return error_response(*rpc_failure(error))


async def _on_facade_error(_request: Request, error: FacadeError) -> Response:
    return error_response(error.code, error.message, error.http_status)


async def _on_http_exception(_request: Request, error: HTTPException) -> Response:
    code = _CODE_OF_HTTP.get(error.status_code, 3 if error.status_code < 500 else 13)
    allowed = (error.headers or {}).get("Allow", "")
    message = f"method not allowed; wanted {allowed}" if allowed else str(error.detail)
    return error_response(code, message, error.status_code, error.headers)


async def _on_invalid_request(_request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    return error_response(3, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


async def _on_exception(_request: Request, _error: Exception) -> Response:
    return error_response(13, _INTERNAL)


ERROR_HANDLERS: Mapping[int | type[Exception], Handler] = {
    grpc.aio.AioRpcError: _on_rpc_failure,
    FacadeError: _on_facade_error,
    HTTPException: _on_http_exception,
    RequestValidationError: _on_invalid_request,
    Exception: _on_exception,
}
