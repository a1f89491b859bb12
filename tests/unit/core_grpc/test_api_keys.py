"""The file of keys: what is in it, who gets in, and that a file that cannot be read lets nobody in."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from core_grpc.access import DOORS, Rights, is_pattern, parse_rights
from core_grpc.api_keys import ApiKey, KeyFile, KeysError, changed_keys, new_key, read_keys


def written(path: Path, expires: int = 0) -> tuple[ApiKey, str]:
    with changed_keys(path) as keys:
        key, shown = new_key(Rights(("*",)), expires, "a note", time.time())
        keys[key.id] = key
    return key, shown


def test_only_the_hash_of_a_secret_is_kept_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, shown = written(path)
    secret = shown.removeprefix(f"tg_{key.id}_")
    assert len(secret) == 43
    assert secret not in path.read_text()
    assert hashlib.sha256(secret.encode()).hexdigest() in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert read_keys(path) == {key.id: key}


def test_who_gets_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, shown = written(path)
    _, expired = written(path, expires=int(time.time()) - 1)
    keys = KeyFile(path)
    assert keys.key_of(shown) == key
    for wrong in (expired, shown[:-1], shown + "A", shown.upper(), "", f"tg_{key.id}_", f"tg_{key.id}_{key.sha256}", f" {shown}"):
        assert keys.key_of(wrong) is None, wrong


@pytest.mark.parametrize("text", [None, "no key", "abcdefabcdef\tff\t1\t0\tmodel:*\t"])
def test_a_file_that_became_unreadable_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.setattr("core_grpc.api_keys._LOOK_S", 0.0)
    path = tmp_path / "keys"
    _, shown = written(path)
    keys = KeyFile(path)
    assert keys.key_of(shown)
    path.unlink() if text is None else path.write_text(text)
    assert keys.key_of(shown) is None


@pytest.mark.parametrize("line", ["x", "abcdefabcdef\tff\t1\t0\tmodel:*\t", "../../etc/pa\t" + "0" * 64 + "\t1\t0\t\t"])
def test_a_line_that_is_no_key_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"# comment\n{line}\n")
    with pytest.raises(KeysError, match="keys, line 2: wanted id"):
        KeyFile(tmp_path / "keys")


def _add_unwritable(path: Path) -> None:
    with changed_keys(path) as keys:
        keys["x"] = ApiKey("x", "", 0, 0, Rights(), "\ud800")


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    written(path)
    before = path.read_text()
    with pytest.raises(UnicodeEncodeError):
        _add_unwritable(path)
    assert path.read_text() == before


def test_rights_as_text() -> None:
    rights = Rights(("resnet*", "ocr"), ("rest",), management=True)
    assert parse_rights(str(rights)) == rights
    assert str(Rights(("*",))) == "model:*"
    assert parse_rights("openid profile") == Rights()
    assert parse_rights("model:* door:telnet") == Rights(("*",), DOORS)
    assert parse_rights("MANAGEMENT managements") == Rights()
    assert not is_pattern("a b")
    assert not is_pattern("a\tb")


@pytest.mark.parametrize(
    ("pattern", "name", "is_allowed"),
    [("*", "any", True), ("res*", "resnet", True), ("res*", "RESNET", False), ("a?", "a", False), ("a.b", "axb", False), ("", "", False)],
)
def test_patterns(pattern: str, name: str, is_allowed: bool) -> None:
    assert Rights((pattern,) if pattern else ()).allow_model(name) is is_allowed
