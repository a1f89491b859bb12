"""Message frames, time-outs and status texts of gRPC over HTTP/2."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_grpc.errors import InvalidArgument, LimitExceeded
from core_grpc.rpc.framing import compressed_frame, frame, status_message, timeout_s, unframed


@given(st.binary(max_size=100))
def test_a_frame_holds_its_message(message: bytes) -> None:
    assert bytes(unframed(frame(message), 100)) == message


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\0\0\0\0\2a", b"\0\0\0\0\1ab"])
def test_a_body_that_is_not_one_message_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        unframed(body, 100)


def test_a_long_message_is_refused_by_its_prefix() -> None:
    with pytest.raises(LimitExceeded, match=r"101 bytes.*100.*max_message_bytes"):
        unframed(b"\0\0\0\0\x65", 100)


def test_a_compressed_frame_says_so() -> None:
    framed = compressed_frame(b"abc")
    assert framed == b"\1\0\0\0\3abc"
    assert bytes(unframed(framed, 100)) == b"abc"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"500m", 0.5),
        (b"7u", 7e-6),
        (b"7n", 7e-9),
        (b"5", None),
        (b"S", None),
        (b"-1S", None),
        (b"100000000000n", 100.0),
        pytest.param(b"9" * 400 + b"H", None, id="beyond floats"),
        pytest.param(b"9" * 5000 + b"n", None, id="beyond int()"),
    ],
)
def test_timeouts(header: bytes, seconds: float | None) -> None:
    assert timeout_s(header) == (None if seconds is None else pytest.approx(seconds))


@given(st.text())
def test_a_status_text_survives_its_header(text: str) -> None:
    encoded = status_message(text.encode("utf-8", "ignore").decode())
    assert encoded.isascii()
    assert b"\n" not in encoded
    assert unquote(encoded.decode()) == text.encode("utf-8", "ignore").decode()
