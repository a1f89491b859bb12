"""Settings from environment and file; every refusal names what is wrong."""

from __future__ import annotations

import ast
import os
from itertools import pairwise
from pathlib import Path

import pytest

import rest_facade.settings
from rest_facade.settings import PREFIX, FacadeSettings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TENSORGATE_"):
            monkeypatch.delenv(name)


def test_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tensorgate.toml"
    file.write_text('[facade]\nport = 9000\nhost = "0.0.0.0"\n[server]\nport = 1\n')
    monkeypatch.setenv("TENSORGATE_CONFIG", str(file))
    monkeypatch.setenv("TENSORGATE_FACADE_PORT", "9001")
    settings = load_settings()
    assert (settings.port, settings.host, settings.log_level) == (9001, "0.0.0.0", "info")


def test_the_limit_of_messages_is_the_cores_unless_the_facade_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tensorgate.toml"
    file.write_text("[limits]\nmax_message_bytes = 5000\n")
    monkeypatch.setenv("TENSORGATE_CONFIG", str(file))
    assert load_settings().max_body_bytes == 5000
    monkeypatch.setenv("TENSORGATE_LIMITS_MAX_MESSAGE_BYTES", "6000")
    assert load_settings().max_body_bytes == 6000
    monkeypatch.setenv("TENSORGATE_FACADE_MAX_BODY_BYTES", "7000")
    assert load_settings().max_body_bytes == 7000


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PORT", "70000", "TENSORGATE_FACADE_PORT: Input should be less than or equal to 65535, got '70000'"),
        ("PORT", "many", "TENSORGATE_FACADE_PORT: "),
        ("LOG_LEVEL", "loud", "TENSORGATE_FACADE_LOG_LEVEL: Input should be 'debug', 'info', 'warning' or 'error', got 'loud'"),
        ("PUBLIC_URL", "gate.example", "TENSORGATE_FACADE_PUBLIC_URL: "),
        ("PROT", "1", "TENSORGATE_FACADE_PROT: no such setting; facade has host, port,"),
    ],
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[facade]\nprot = 1", "[facade] prot: no such setting; facade has "),
        ('[facade]\nport = "x"', "[facade] port: "),
        ("facade = 1", "[facade]: wanted a table, got 1"),
        ("[facade", "TENSORGATE_CONFIG: "),
    ],
)
def test_a_bad_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("TENSORGATE_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert str(refusal.value).startswith(message)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENSORGATE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match=r"^TENSORGATE_CONFIG: cannot read "):
        load_settings()


def test_every_field_explains_itself() -> None:
    tree = ast.parse(Path(rest_facade.settings.__file__).read_text())
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "FacadeSettings")
    explained = {
        field.target.id
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
    }
    assert explained == set(FacadeSettings.model_fields)
