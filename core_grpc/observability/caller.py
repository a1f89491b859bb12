"""Who calls: the key id that the edge vouches for.

The edge removes the header from what clients send and sets it once it knows them; the core believes it only from the edge's private Unix
socket. Everybody else is ``anonymous``. The id is for metering and never decides what a caller may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from core_grpc.errors import one_line

HEADER = "x-tensorgate-caller"
ANONYMOUS = "anonymous"
_CHARACTERS = 128

CALLER: ContextVar[str] = ContextVar("caller", default=ANONYMOUS)
"""Of the call that the current task serves; tasks that it starts inherit it."""


def caller_of(metadata: Mapping[str, str]) -> str:
    """The id in the metadata of a call that came from the edge."""
    return one_line(metadata.get(HEADER, ""), _CHARACTERS) or ANONYMOUS
