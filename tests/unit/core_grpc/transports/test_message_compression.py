"""What a call's metadata says about compression, and messages in their frames."""

from __future__ import annotations

import os

import pytest

from core_grpc.errors import InvalidArgument, LimitExceeded, StatusCode, Unsupported
from core_grpc.rpc.compression import ENCODINGS, compressed, inflated
from core_grpc.rpc.interceptors import RpcFailure
from core_grpc.transports.message_compression import MessageCompression, asked_algorithm, framed_answer, inflated_message, negotiated

ACCEPT = {"grpc-accept-encoding": "identity, deflate,gzip"}
LIMIT = 1 << 20


@pytest.mark.parametrize(
    ("metadata", "requests", "answers"),
    [
        (ACCEPT, "", ""),
        ({"grpc-encoding": "identity", **ACCEPT}, "", ""),
        ({"grpc-encoding": "gzip", **ACCEPT}, "gzip", "gzip"),
        ({"grpc-encoding": "gzip"}, "gzip", ""),
        ({"grpc-encoding": "gzip", "grpc-accept-encoding": "identity,deflate"}, "gzip", ""),
        ({"response-compression-algorithm": "deflate", **ACCEPT}, "", "deflate"),
        ({"response-compression-algorithm": "deflate"}, "", ""),
        ({"grpc-encoding": "gzip", "response-compression-algorithm": "none", **ACCEPT}, "gzip", ""),
        ({"grpc-encoding": "gzip", "x-envoy-original-path": "/v2", **ACCEPT}, "gzip", ""),
        ({"response-compression-algorithm": "gzip", "x-envoy-original-path": "/v2", **ACCEPT}, "", ""),
    ],
)
def test_what_a_call_says(metadata: dict[str, str], requests: str, answers: str) -> None:
    assert negotiated(metadata) == MessageCompression(requests, answers)


def test_what_is_not_offered() -> None:
    with pytest.raises(Unsupported, match=r"'snappy'.*identity, deflate, gzip"):
        negotiated({"grpc-encoding": "snappy"})
    with pytest.raises(InvalidArgument, match="gzip, deflate or none, got 'br'"):
        asked_algorithm({"response-compression-algorithm": "br"})


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [1 << 10, 1 << 16])
async def test_answers_are_framed(encoding: str, size: int) -> None:
    framed = await framed_answer(bytes(size), encoding, None)
    assert framed[0] == 1
    assert int.from_bytes(framed[1:5], "big") == len(framed) - 5 < size
    assert inflated(framed[5:], encoding, size) == bytes(size)


@pytest.mark.parametrize(("message", "encoding"), [(bytes(1023), "gzip"), (os.urandom(2000), "gzip"), (bytes(5000), "")])
async def test_answers_that_compression_would_not_help_are_sent_as_they_are(message: bytes, encoding: str) -> None:
    assert await framed_answer(message, encoding, None) == b"\0" + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("message", [b"", b"a", os.urandom(5000)])
async def test_requests_are_inflated(encoding: str, message: bytes) -> None:
    assert await inflated_message(compressed(message, encoding), encoding, LIMIT, None) == message
    assert await inflated_message(b"", encoding, LIMIT, None) == b""


async def test_damaged_requests_are_internal_as_grpc_s_own_servers_say() -> None:
    for message, encoding in ((b"\xff" * 30, "gzip"), (compressed(b"a", "gzip"), "")):
        with pytest.raises(RpcFailure) as caught:
            await inflated_message(message, encoding, LIMIT, None)
        assert caught.value.code is StatusCode.INTERNAL


async def test_lim_05_a_bomb_is_refused_by_the_limit() -> None:
    with pytest.raises(LimitExceeded, match="max_message_bytes"):
        await inflated_message(compressed(bytes(LIMIT + 1), "gzip"), "gzip", LIMIT, None)
