"""gRPC over HTTP/2, the parts that the host's HTTP stack leaves to us: message framing, time-outs, status text.

Format: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import struct
from urllib.parse import quote

from core_grpc.errors import InvalidArgument, LimitExceeded

PREFIX_BYTES = 5
"""A message's frame: one byte that says whether it is compressed, four big-endian bytes of length."""

_PREFIX = struct.Struct(">BI")
_TIMEOUT_DIGITS = 18
"""gRPC allows eight. More than these are no number that anybody waits for, and beyond a few thousand Python does not read them."""
_TIMEOUT_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def frame(message: bytes) -> bytes:
    """The message with its prefix, uncompressed."""
    return _PREFIX.pack(0, len(message)) + message


def compressed_frame(message: bytes) -> bytes:
    """A compressed message with its prefix."""
    return _PREFIX.pack(1, len(message)) + message


def message_length(prefix: bytes | memoryview, limit_bytes: int) -> int:
    """The length that a message's prefix announces.

    Raises:
        LimitExceeded: it is longer than the limit.
    """
    _, length = _PREFIX.unpack_from(prefix)
    if length > limit_bytes:
        raise LimitExceeded(f"message of {length} bytes: the limit is {limit_bytes} (max_message_bytes)")
    return int(length)


def unframed(body: bytes, limit_bytes: int) -> memoryview:
    """The one message of a unary request's body; whether it is compressed is what the body's first byte says.

    Raises:
        InvalidArgument: the body is not exactly one message.
        LimitExceeded: as ``message_length``.
    """
    if len(body) < PREFIX_BYTES:
        raise InvalidArgument(f"request body of {len(body)} bytes: wanted one gRPC message with its 5-byte prefix")
    length = message_length(body, limit_bytes)
    if len(body) != PREFIX_BYTES + length:
        raise InvalidArgument(f"request body of {len(body)} bytes: its prefix announces a message of {length} bytes")
    return memoryview(body)[PREFIX_BYTES:]


def timeout_s(header: bytes) -> float | None:
    """The ``grpc-timeout`` header in seconds, None if it is malformed (as if it were not there, like grpc's own servers)."""
    text = header.decode("latin-1")
    unit = _TIMEOUT_UNITS_S.get(text[-1:])
    digits = text[:-1]
    if unit is None or not digits.isascii() or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS:
        return None
    return int(digits) * unit


def status_message(text: str) -> bytes:
    """A status text for the ``grpc-message`` header: percent-encoded UTF-8."""
    return quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode("ascii")
