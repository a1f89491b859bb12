"""The parts of ``tensorgate infer`` that need no server; the doors themselves are tried in tests/integration/test_serve.py."""

from __future__ import annotations

import struct
from pathlib import Path

import grpc
import pytest

from tensorgate.infer.call import ClassScore, InferError, best
from tensorgate.infer.command import DOORS, photo_from
from tensorgate.infer.grpc_doors import _frames, _status_name


def test_the_best_classes_in_order() -> None:
    found = best([0.1, 0.5, 0.5, 0.2], {1: "one", 3: "three"}, 3)
    assert found == (ClassScore("one", 1, 0.5), ClassScore("", 2, 0.5), ClassScore("three", 3, 0.2))


def test_frames_of_grpc_web() -> None:
    trailers = b"grpc-status: 5\r\nGrpc-Message:not%20found\r\n"
    body = struct.pack(">BI", 0, 3) + b"abc" + struct.pack(">BI", 0x80, len(trailers)) + trailers
    assert _frames(body) == ([b"abc"], {"grpc-status": "5", "grpc-message": "not%20found"})
    assert _frames(b"") == ([], {})
    assert _frames(body[:4]) == ([], {})


def test_status_names() -> None:
    assert _status_name("5") == grpc.StatusCode.NOT_FOUND.name
    assert _status_name("") == "grpc-status missing"


def test_a_photograph_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(InferError, match=r"empty\.jpg: the file is empty"):
        photo_from(tmp_path / "empty.jpg")
    with pytest.raises(InferError, match="Is a directory"):
        photo_from(tmp_path)
    with pytest.raises(InferError, match="No such file or directory"):
        photo_from(tmp_path / "none.jpg")


def test_the_doors_are_those_of_the_documentation() -> None:
    assert list(DOORS) == ["grpc", "grpc-web", "v1", "v2", "v2-binary", "upload"]
