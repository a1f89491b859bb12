"""The content types of REST bodies: what clients write, and what the doors take them for."""

from __future__ import annotations

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
MULTIPART_TYPE = "multipart/form-data"
EVENTS_TYPE = "text/event-stream; charset=utf-8"

_JSON_ESSENCES = frozenset({"", JSON_TYPE, BINARY_TYPE, "application/x-www-form-urlencoded"})
"""Stock clients send JSON under any of these; the last is what ``curl -d`` says."""


def essence(content_type: str) -> str:
    """The type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether a body of this type is JSON, possibly with raw tensors behind it."""
    return essence(content_type) in _JSON_ESSENCES


def is_form(content_type: str) -> bool:
    """Whether a body of this type is an upload in parts."""
    return essence(content_type) == MULTIPART_TYPE


def is_upload(content_type: str) -> bool:
    """Whether a body of this type is an upload: in parts, or one bare file."""
    return is_form(content_type) or essence(content_type).startswith(("image/", "audio/"))
