"""Settings: every field explained, every source in its place, every mistake named."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from core_grpc.settings import DrainSettings, LimitsSettings, NodeSettings, ServerSettings, SettingsError, environment_from, load_settings

GROUPS: dict[str, type[Any]] = get_type_hints(NodeSettings)
FIELDS = [(name, group, item) for name, group in GROUPS.items() for item in fields(group)]


@dataclass(frozen=True)
class KeyedGroup:
    """A group with a field that must be set."""

    key: str


@dataclass(frozen=True)
class KeyedSettings:
    """Settings with it."""

    vault: KeyedGroup = field(default_factory=lambda: KeyedGroup("unset"))


@pytest.mark.parametrize(("name", "group"), GROUPS.items())
def test_every_field_has_an_explanation_under_it(name: str, group: type[Any]) -> None:
    body = ast.parse(textwrap.dedent(inspect.getsource(group))).body[0].body  # type: ignore[attr-defined]
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
            assert explained, f"{name}.{ast.unparse(statement.target)}"


@pytest.mark.parametrize(("name", "group", "item"), FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_every_field_has_a_default_within_its_range(name: str, group: type[Any], item: Any) -> None:
    assert item.default is not MISSING
    hint = get_type_hints(group)[item.name]
    assert isinstance(item.default, hint), f"{name}.{item.name}"
    if hint in (int, float):
        low, high = item.metadata["range"]
        assert low <= item.default <= high
    if "choices" in item.metadata:
        assert item.default in item.metadata["choices"]


def test_nothing_set_gives_the_defaults() -> None:
    assert load_settings(NodeSettings, {}) == NodeSettings()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tensorgate.toml"
    file.write_text('[server]\nport = 1\nname = "from the file"\n[drain]\ngrace_s = 5\n')
    settings = load_settings(NodeSettings, {"TENSORGATE_CONFIG": str(file), "TENSORGATE_SERVER_PORT": "2"})
    assert (settings.server.port, settings.server.name, settings.drain.grace_s) == (2, "from the file", 5.0)
    assert isinstance(settings.drain.grace_s, float)
    assert settings.limits == LimitsSettings()


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("Yes", True), ("ON", True), ("false", False), ("0", False), ("off", False)]
)
def test_bools_are_read(text: str, value: bool) -> None:
    assert load_settings(NodeSettings, {"TENSORGATE_SERVER_REFLECTION": text}).server.reflection is value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SERVER_PORTS", "1", "TENSORGATE_SERVER_PORTS: no such setting; server has name, transport, host, port"),
        ("SERVER_PORT", "http", "TENSORGATE_SERVER_PORT: wanted int, got 'http'"),
        ("SERVER_PORT", "", "TENSORGATE_SERVER_PORT: wanted int, got ''"),
        ("SERVER_PORT", "1.5", "TENSORGATE_SERVER_PORT: wanted int, got '1.5'"),
        ("SERVER_PORT", "65536", "TENSORGATE_SERVER_PORT: wanted 0 to 65535, got 65536"),
        ("SERVER_PORT", "-1", "TENSORGATE_SERVER_PORT: wanted 0 to 65535, got -1"),
        ("SERVER_REFLECTION", "maybe", "TENSORGATE_SERVER_REFLECTION: wanted bool, got 'maybe'"),
        ("SERVER_TRANSPORT", "http3", "TENSORGATE_SERVER_TRANSPORT: wanted one of auto, envoy, grpcio, got 'http3'"),
        ("SERVER_LOG_LEVEL", "INFO", "TENSORGATE_SERVER_LOG_LEVEL: wanted one of debug, info, warning, error, got 'INFO'"),
        ("DRAIN_GRACE_S", "nan", "TENSORGATE_DRAIN_GRACE_S: wanted 0 to 3600, got nan"),
        ("DRAIN_GRACE_S", "inf", "TENSORGATE_DRAIN_GRACE_S: wanted 0 to 3600, got inf"),
        ("LIMITS_MAX_MESSAGE_BYTES", "64M", "TENSORGATE_LIMITS_MAX_MESSAGE_BYTES: wanted int, got '64M'"),
    ],
)
def test_a_mistake_in_the_environment_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(NodeSettings, {f"TENSORGATE_{name}": value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", "[server] prot: no such setting"),
        ("server = 1", "[server]: wanted a table, got 1"),
        ('[server]\nport = "x"', "[server] port: wanted int, got 'x'"),
        ("[server]\nport = true", "[server] port: wanted int, got True"),
        ("[server]\nport = 1.0", "[server] port: wanted int, got 1.0"),
        ("[server]\nname = 3", "[server] name: wanted str, got 3"),
        ("[drain]\ngrace_s = [1]", "[drain] grace_s: wanted float, got [1]"),
        ("[drain]\ngrace_s = {}", "[drain] grace_s: wanted float, got {}"),
        ("[drain]\ngrace_s = 1979-05-27", "[drain] grace_s: wanted float, got datetime.date(1979, 5, 27)"),
        ("[server", "TENSORGATE_CONFIG: "),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "tensorgate.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(NodeSettings, {"TENSORGATE_CONFIG": str(file)})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"TENSORGATE_CONFIG: cannot read .*absent\.toml: No such file or directory"):
        load_settings(NodeSettings, {"TENSORGATE_CONFIG": str(tmp_path / "absent.toml")})


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "binary.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not TOML"):
        load_settings(NodeSettings, {"TENSORGATE_CONFIG": str(file)})


def test_a_required_setting_that_is_missing_is_named() -> None:
    with pytest.raises(SettingsError, match="TENSORGATE_VAULT_KEY: required, not set"):
        load_settings(KeyedSettings, {})
    assert load_settings(KeyedSettings, {"TENSORGATE_VAULT_KEY": "k"}).vault.key == "k"


def test_other_programs_names_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "tensorgate.toml"
    file.write_text("[edge]\nport = 8080\n")
    environ = {"TENSORGATE_CONFIG": str(file), "TENSORGATE_FACADE_PORT": "1", "TENSORGATE_CONTROL_FD": "3", "PATH": "/bin"}
    assert load_settings(NodeSettings, environ) == NodeSettings()


@pytest.mark.parametrize(
    "settings",
    [
        NodeSettings(),
        NodeSettings(server=ServerSettings(port=0, host="::1", reflection=False, so_reuseport=True, name="a name with spaces")),
        NodeSettings(drain=DrainSettings(notice_s=0, grace_s=0.25), limits=LimitsSettings(max_message_bytes=1024)),
    ],
)
def test_the_environment_round_trip(settings: NodeSettings) -> None:
    environ = environment_from(settings)
    assert load_settings(NodeSettings, environ) == settings


def test_defaults_are_left_out_of_the_environment() -> None:
    assert environment_from(NodeSettings()) == {}
    assert environment_from(NodeSettings(server=ServerSettings(so_reuseport=True))) == {"TENSORGATE_SERVER_SO_REUSEPORT": "true"}
