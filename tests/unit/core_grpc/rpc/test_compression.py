"""gzip and deflate: round trips, damage, and data that would inflate without end."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_grpc.errors import InvalidArgument, LimitExceeded
from core_grpc.rpc.compression import ENCODINGS, compressed, inflated

ORIGINAL: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
TEXT = bytes(range(256)) * 40


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.binary(max_size=5000), copies=st.integers(0, 200))
def test_data_comes_back_and_others_can_read_it(encoding: str, data: bytes, copies: int) -> None:
    data *= copies
    small = compressed(data, encoding)
    assert ORIGINAL[encoding](small) == data
    assert inflated(small, encoding, len(data)) == data


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1 << 19])
def test_data_of_about_a_step(encoding: str, size: int) -> None:
    assert inflated(compressed(bytes(size), encoding), encoding, size) == bytes(size)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_limit_holds_to_the_byte(encoding: str) -> None:
    small = compressed(TEXT, encoding)
    assert inflated(small, encoding, len(TEXT)) == TEXT
    with pytest.raises(LimitExceeded, match=rf"{len(TEXT) - 1} bytes.*max_message_bytes"):
        inflated(small, encoding, len(TEXT) - 1)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[:0], "cut short: 0 bytes"),
        (lambda data: data[:-1], "cut short"),
        (lambda data: data + b"xyz", "3 bytes behind the end"),
        (lambda data: data + bytes(1 << 17), f"{1 << 17} bytes behind the end"),
        (lambda data: b"\xff" * len(data), "damaged"),
        (lambda data: data[:-6] + b"\xff" * 6, "damaged"),
    ],
    ids=["empty", "cut short", "more behind", "much more behind", "something else", "wrong checksum"],
)
def test_damage_is_refused(encoding: str, damage: Callable[[bytes], bytes], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        inflated(damage(compressed(TEXT, encoding)), encoding, 1 << 20)


def test_deflate_is_the_zlib_format() -> None:
    bare = zlib.compressobj(wbits=-15)
    with pytest.raises(InvalidArgument, match="not deflate"):
        inflated(bare.compress(TEXT) + bare.flush(), "deflate", 1 << 20)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lim_05_a_bomb_takes_no_more_memory_than_the_limit(encoding: str) -> None:
    limit = 4 << 20
    bomb = compressed(bytes(256 << 20), encoding)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded) as caught:
            inflated(bomb, encoding, limit)
        held, peak = tracemalloc.get_traced_memory()
        assert peak < limit * 1.25 + (1 << 20)
        # However long somebody keeps the exception with its frames.
        assert caught.tb is not None
        assert held < 1 << 20
    finally:
        tracemalloc.stop()
