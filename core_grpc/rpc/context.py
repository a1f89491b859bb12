"""What a servicer may know about its call, whichever transport carries it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class RpcContext(Protocol):
    """One call. Failures are raised as ``GatewayError``; the transport gives them their wire form."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The request's metadata, names in lower case. Through the transcoder these are the HTTP headers."""
        ...

    @property
    def deadline(self) -> float | None:
        """Monotonic seconds after which nobody waits for the answer; None when the caller set no limit."""
        ...

    @property
    def from_edge(self) -> bool:
        """Whether the call came through the private Unix socket: the only way in for the edge, and one no client can take."""
        ...

    @property
    def request_id(self) -> str:
        """The id that log lines about this call carry (`x-request-id`), capped and printable."""
        ...

    def set_header(self, name: str, value: str) -> None:
        """Adds a response header (initial metadata). Only before the first answer."""
        ...
