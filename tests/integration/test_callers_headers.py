"""One caller's unreadable header is that caller's trouble: the edge's connection to the node carries others too."""

from __future__ import annotations

import httpx
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


@pytest.mark.parametrize("path", ["/v2/models/id_fp32/ready", "/v1/models/id_fp32"])
@pytest.mark.parametrize(
    ("name", "value"), [("$", "x"), ("a`b", "x"), ("x", "é"), ("x-bin", "!!!"), ("grpc-encoding", "snappy"), ("grpc-status", "x")]
)
def test_rest_callers_may_send_headers_that_grpc_cannot_carry(stack: Stack, path: str, name: str, value: str) -> None:
    answer = httpx.get(stack.addresses.edge_url + path, headers=[(name.encode(), value.encode())])
    assert answer.status_code == 200, answer.text
