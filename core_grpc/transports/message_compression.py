"""Compression of gRPC messages, call by call: https://github.com/grpc/grpc/blob/master/doc/compression.md

A caller's ``grpc-encoding`` says how its requests are compressed. Answers are compressed for callers that accept it and either
compressed their requests (where the transport can see that) or asked for it with the metadata ``response-compression-algorithm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from core_grpc.errors import InvalidArgument, StatusCode, Unsupported, quoted
from core_grpc.rpc.compression import ENCODINGS, INLINE_BYTES, INLINE_INFLATED_BYTES, SMALLEST_BYTES, compressed, inflated
from core_grpc.rpc.framing import compressed_frame, frame
from core_grpc.rpc.interceptors import RpcFailure
from core_grpc.rpc.off_loop import off_loop

ASKED_HEADER = "response-compression-algorithm"
"""``gzip``, ``deflate`` or ``none``. Beside the protocol, which has no way to ask without compressing the request too."""
ACCEPTED = "identity, deflate, gzip"
"""The value of ``grpc-accept-encoding``."""

_TRANSCODED_HEADER = "x-envoy-original-path"


class MessageCompression(NamedTuple):
    """By what a call's messages are compressed; empty for not at all."""

    requests: str = ""
    answers: str = ""


UNCOMPRESSED = MessageCompression()


def negotiated(metadata: Mapping[str, str]) -> MessageCompression:
    """What the call's metadata says.

    Raises:
        Unsupported: the requests are compressed by something else.
        InvalidArgument: as ``asked_algorithm``.
    """
    requests = metadata.get("grpc-encoding", "identity")
    if requests == "identity":
        requests = ""
    elif requests not in ENCODINGS:
        raise Unsupported(f"grpc-encoding {quoted(requests, 40)} is not offered: wanted one of {ACCEPTED}")
    answers = asked_algorithm(metadata)
    if answers is None:
        answers = "" if _TRANSCODED_HEADER in metadata else requests
    accepted = [name.strip() for name in metadata.get("grpc-accept-encoding", "").split(",")]
    return MessageCompression(requests, answers if answers in accepted else "")


def asked_algorithm(metadata: Mapping[str, str]) -> str | None:
    """How the caller asked for its answers to be compressed: empty for not at all, None when it did not say.

    Raises:
        InvalidArgument: by something that is not offered.
    """
    asked = metadata.get(ASKED_HEADER)
    if asked is None or _TRANSCODED_HEADER in metadata:  # The transcoder reads only messages that are not compressed.
        return None
    if asked != "none" and asked not in ENCODINGS:
        raise InvalidArgument(f"{ASKED_HEADER}: wanted gzip, deflate or none, got {quoted(asked, 40)}")
    return "" if asked == "none" else asked


async def inflated_message(
    message: bytes | bytearray | memoryview, encoding: str, limit_bytes: int, pool: Executor | None
) -> bytes | bytearray:
    """A request's message, whose frame says that it is compressed.

    Raises:
        RpcFailure: INTERNAL, as grpc's own servers answer: the data is damaged, or no encoding was announced.
        LimitExceeded: it is longer than the limit.
    """
    if not encoding:
        raise RpcFailure(StatusCode.INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
    if not message:
        return b""
    try:
        return await off_loop(lambda: inflated(message, encoding, limit_bytes), pool, is_large=len(message) > INLINE_INFLATED_BYTES)
    except InvalidArgument as error:
        raise RpcFailure(StatusCode.INTERNAL, f"a message cannot be decompressed: {error.message}") from None


async def framed_answer(message: bytes, encoding: str, pool: Executor | None) -> bytes:
    """The answer in its frame, compressed unless it is small or would not become smaller."""
    if not encoding or len(message) < SMALLEST_BYTES:
        return frame(message)
    smaller = await off_loop(lambda: compressed(message, encoding), pool, is_large=len(message) > INLINE_BYTES)
    return compressed_frame(smaller) if len(smaller) < len(message) else frame(message)
