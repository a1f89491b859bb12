"""What a fingerprint notices, and what it does not mind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from core_grpc.models.fingerprints import fingerprints


def _overwrite_in_place(model: Path) -> None:
    file = model / "1" / "model.onnx"
    before = file.stat()
    file.write_bytes(b"other")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def _replace_with_the_same_size_and_time(model: Path) -> None:
    file = model / "1" / "model.onnx"
    before = file.stat()
    (model / "1" / "new").write_bytes(b"12345")
    (model / "1" / "new").replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "overwritten": _overwrite_in_place,
    "replaced": _replace_with_the_same_size_and_time,
    "truncated": lambda model: os.truncate(model / "1" / "model.onnx", 2),
    "new version": lambda model: (model / "2").mkdir(),
    "configured": lambda model: (model / "model.toml").write_text("a"),
    "removed file": lambda model: (model / "1" / "model.onnx").unlink(),
    "renamed version": lambda model: (model / "1").rename(model / "3"),
    "file in depth": lambda model: (model / "1" / "data" / "weights.bin").write_bytes(b"x"),
    "made readable": lambda model: (model / "1" / "model.onnx").chmod(0o600),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1" / "data").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"12345")
    (tmp_path / "other" / "1").mkdir(parents=True)
    return tmp_path / "m"


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_in_its_model_alone(model: Path, name: str) -> None:
    before = fingerprints(model.parent)
    assert fingerprints(model.parent) == before
    CHANGES[name](model)
    after = fingerprints(model.parent)
    assert after["m"] != before["m"]
    assert after["other"] == before["other"]


def test_what_a_model_leaves_when_it_runs_is_no_change(model: Path) -> None:
    before = fingerprints(model.parent)
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")
    assert {*fingerprints(model.parent)} == {*before}


def test_which_entries_are_models(model: Path) -> None:
    (model.parent / ".git").mkdir()
    (model.parent / "README.md").write_text("hello")
    (model.parent / "dangling").symlink_to("nowhere")
    (model.parent / "link").symlink_to(model)
    found = fingerprints(model.parent)
    assert sorted(found) == ["dangling", "link", "m", "other"]
    assert found["link"] == found["m"]


def test_links_in_a_circle_end(model: Path) -> None:
    (model / "1" / "up").symlink_to(model)
    (model / "1" / "self").symlink_to(model / "1")
    assert fingerprints(model.parent) == fingerprints(model.parent)


def test_a_repository_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        fingerprints(tmp_path / "nope")
