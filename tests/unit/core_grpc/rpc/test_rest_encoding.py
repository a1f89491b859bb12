"""Content-Encoding and Accept-Encoding, with their weights."""

from __future__ import annotations

import pytest

from core_grpc.errors import Unsupported
from core_grpc.rpc.rest_encoding import answer_encoding, request_encoding


@pytest.mark.parametrize(
    ("header", "encoding"),
    [("", ""), ("identity", ""), ("gzip", "gzip"), (" GZIP ", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate")],
)
def test_encodings_of_requests(header: str, encoding: str) -> None:
    assert request_encoding(header) == encoding


@pytest.mark.parametrize("header", ["br", "gzip, gzip", "gzip, identity", "zstd"])
def test_other_encodings_of_requests_are_refused_by_name(header: str) -> None:
    with pytest.raises(Unsupported, match=rf"^Content-Encoding '{header}' is not offered: wanted gzip, deflate or none$"):
        request_encoding(header)


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", ""),
        ("identity", ""),
        ("gzip", "gzip"),
        ("gzip, deflate, br", "gzip"),
        ("deflate", "deflate"),
        ("br", ""),
        ("gzip;q=0", ""),
        ("gzip;q=0.000", ""),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("GZIP ; Q=0.7", "gzip"),
        ("gzip;q=0.5, identity;q=0.9", ""),
        ("gzip;q=0.5, identity;q=0.5", "gzip"),
        ("*", "gzip"),
        ("*;q=0", ""),
        ("gzip;q=0, *;q=0.5", "deflate"),
        ("gzip;q=nan", ""),
        ("gzip;q=2", ""),
        ("gzip;q=x, deflate;q=0.1", "deflate"),
        (",,;q=1,", ""),
    ],
)
def test_encodings_of_answers(header: str, encoding: str) -> None:
    assert answer_encoding(header) == encoding
