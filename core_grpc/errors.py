"""Every way a request or a load can fail, and the one table that gives each its status.

::

    GatewayError
    ├── InvalidArgument           the request contradicts the protocol or the model
    │   └── InvalidTensor         … in one named tensor
    ├── NotFound                  no such model, version, region, method
    ├── AlreadyExists             a name is taken
    ├── Unauthenticated           nobody knows who the caller is, and this asks for somebody
    ├── PermissionDenied          the caller may not do this here
    ├── FailedPrecondition        right request, wrong model or state; retrying as it is will not help
    ├── LimitExceeded             a size limit was hit; names the limit and its value
    ├── QueueFull                 too much is waiting; trying later may help
    ├── ModelNotReady             loading, unloading or failed to load
    ├── ModelControlRefused       models are not loaded and unloaded on request here
    ├── ServerDraining            the server is going away; another one may answer
    ├── DeadlineExpired           the caller's time ran out before the work was done
    ├── Cancelled                 the caller left
    ├── Unsupported               this server does not offer it
    ├── BackendFailed             the engine failed on an accepted request
    └── ModelLoadFailed           a model in the repository cannot be served

Text: one line that names the field, what was wanted and what came. Never a path, a payload or an exception's repr.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

_MESSAGE_LIMIT = 1000
"""Characters. Status messages travel in HTTP headers, which have a limit; texts that quote a caller's name must not reach it."""


class StatusCode(IntEnum):
    """google.rpc.Code: the numbers of gRPC statuses."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def one_line(text: str, limit: int = _MESSAGE_LIMIT) -> str:
    """``text`` with control characters escaped and its length capped, fit for a header and a log line."""
    clipped = text if len(text) <= limit else text[: limit - 1] + "…"
    if clipped.isprintable():
        return clipped
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in clipped)


def quoted(name: str, limit: int = 100) -> str:
    """A caller's name for something, in quotes, escaped and capped."""
    return f"'{one_line(name, limit)}'"


class GatewayError(Exception):
    """A failure with a status of its own. Subclasses have one row each in ``STATUS``."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))

    @property
    def message(self) -> str:
        """The line for the caller."""
        return str(self.args[0])


class InvalidArgument(GatewayError):
    """The request contradicts the protocol or the model."""


class InvalidTensor(InvalidArgument):
    """One named tensor contradicts the protocol or the model."""


class NotFound(GatewayError):
    """No such model, version, region or method."""


class AlreadyExists(GatewayError):
    """A name is taken."""


class Unauthenticated(GatewayError):
    """The caller shows no valid key or token."""


class PermissionDenied(GatewayError):
    """The caller may not do this on this door."""


class FailedPrecondition(GatewayError):
    """The request is well-formed but this model or state cannot serve it."""


class LimitExceeded(GatewayError):
    """A size limit was hit."""


class QueueFull(GatewayError):
    """Too much work is waiting. ``retry_after_s`` is when trying again may help, in seconds; 0 where nobody knows."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelNotReady(GatewayError):
    """The model is known but does not answer now."""


class ModelControlRefused(GatewayError):
    """This server's models are not loaded and unloaded on request."""


class ServerDraining(GatewayError):
    """The server takes no new work."""


class DeadlineExpired(GatewayError):
    """The caller's deadline passed before the work was done."""


class Cancelled(GatewayError):
    """The caller left."""


class Unsupported(GatewayError):
    """This server does not offer what was asked."""


class BackendFailed(GatewayError):
    """The engine failed on an accepted request."""


class ModelLoadFailed(GatewayError):
    """A model in the repository cannot be served; the message is the reason in its state."""


STATUS: Mapping[type[GatewayError], StatusCode] = {
    InvalidArgument: StatusCode.INVALID_ARGUMENT,
    InvalidTensor: StatusCode.INVALID_ARGUMENT,
    NotFound: StatusCode.NOT_FOUND,
    AlreadyExists: StatusCode.ALREADY_EXISTS,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    PermissionDenied: StatusCode.PERMISSION_DENIED,
    FailedPrecondition: StatusCode.FAILED_PRECONDITION,
    LimitExceeded: StatusCode.RESOURCE_EXHAUSTED,
    QueueFull: StatusCode.RESOURCE_EXHAUSTED,
    ModelNotReady: StatusCode.UNAVAILABLE,
    ModelControlRefused: StatusCode.UNAVAILABLE,
    ServerDraining: StatusCode.UNAVAILABLE,
    DeadlineExpired: StatusCode.DEADLINE_EXCEEDED,
    Cancelled: StatusCode.CANCELLED,
    Unsupported: StatusCode.UNIMPLEMENTED,
    BackendFailed: StatusCode.INTERNAL,
    ModelLoadFailed: StatusCode.INTERNAL,
}
"""The only place where a failure gets its wire status. Envoy and the facade derive the HTTP status from it by the canonical table
(https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto)."""
