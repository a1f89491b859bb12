"""One caller's unreadable header is that caller's trouble: the edge's connection to the node carries others too."""

from __future__ import annotations

import pytest

from tests.support.raw_grpc import framed, raw_call
from tests.support.stack import Stack

LIVE = "/inference.GRPCInferenceService/ServerLive"


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("grpc-encoding", "snappy", "gzip"),
        ("grpc-encoding", "", "deflate"),
        ("grpc-previous-rpc-attempts", "many", "1"),
        ("grpc-timeout", "soon", "5S"),
        ("x-request-bin", "!!!!", "AAAA"),
    ],
)
def test_a_header_that_cannot_be_read_spoils_nobody_elses(stack: Stack, name: str, bad: str, good: str) -> None:
    edge = stack.addresses.edge_grpc
    for _ in range(4):  # More than the edge has connections to the node.
        raw_call(edge, LIVE, framed(b""), {name: bad})
    answers = [raw_call(edge, LIVE, framed(b""), {name: good}).headers for _ in range(4)]
    assert [answer["grpc-status"] for answer in answers] == ["0"] * 4, answers
