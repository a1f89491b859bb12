"""gzip and deflate, for gRPC messages and REST bodies: what may come in is limited while it is inflated.

``deflate`` is the zlib format (RFC 1950), as HTTP and gRPC both mean it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from core_grpc.errors import InvalidArgument, LimitExceeded

ENCODINGS: Mapping[str, int] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""By the name that both protocols give it: zlib's window bits, which choose the format."""

SMALLEST_BYTES = 1 << 10
"""Answers below this are not compressed: the headers would weigh more than what is saved."""

INLINE_BYTES = 1 << 13
"""Larger answers are compressed on a thread: zlib does not hold the interpreter, and the event loop belongs to everybody."""

INLINE_INFLATED_BYTES = 1 << 10
"""Larger data is inflated on a thread: it may become a thousand times as much."""

_LEVEL = 1
"""The fastest: tensors shrink hardly better at higher levels, and an inference's caller waits."""
_INPUT_STEP_BYTES = 1 << 16
_OUTPUT_STEP_BYTES = 1 << 18


def inflated(data: bytes | bytearray | memoryview, encoding: str, limit_bytes: int) -> bytearray:
    """What ``data`` is the compressed form of. Never holds more than ``limit_bytes`` and one step.

    Raises:
        InvalidArgument: ``data`` is damaged, cut short, or followed by something else.
        LimitExceeded: it inflates to more than ``limit_bytes``.
    """
    whole = bytearray()
    try:
        for piece in _pieces(memoryview(data), encoding):
            whole += piece
            if len(whole) > limit_bytes:
                # The exception keeps this frame, and the frame would keep the data for as long.
                whole.clear()
                raise LimitExceeded(f"the {encoding} data holds more than {limit_bytes} bytes: that is the limit (max_message_bytes)")
    except zlib.error:
        raise InvalidArgument(f"the data is damaged or not {encoding}") from None
    return whole


def compressed(data: bytes, encoding: str) -> bytes:
    """``data`` in its compressed form."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, ENCODINGS[encoding])
    return compressor.compress(data) + compressor.flush()


def _pieces(data: memoryview, encoding: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(ENCODINGS[encoding])
    for start in range(0, len(data), _INPUT_STEP_BYTES):
        # In steps, because what one call leaves unread is copied for the next.
        step: bytes | memoryview = data[start : start + _INPUT_STEP_BYTES]
        is_full = True
        while is_full:
            piece = inflater.decompress(step, _OUTPUT_STEP_BYTES)
            yield piece
            is_full = len(piece) == _OUTPUT_STEP_BYTES
            step = inflater.unconsumed_tail
        if inflater.eof:
            behind = len(inflater.unused_data) + len(data[start + _INPUT_STEP_BYTES :])
            if behind:
                raise InvalidArgument(f"{behind} bytes behind the end of the {encoding} data")
            return
    raise InvalidArgument(f"the {encoding} data is cut short: {len(data)} bytes came")
