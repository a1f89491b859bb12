"""Flags become settings."""

from __future__ import annotations

import pytest

from core_grpc.settings import load_settings
from tensorgate.cli import _environment, _parser, main
from tensorgate.settings import StackSettings


def settings_from(*flags: str) -> StackSettings:
    environ = _environment(_parser().parse_args(["serve", *flags]))
    return load_settings(StackSettings, {key: value for key, value in environ.items() if key.startswith("TENSORGATE_")})


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORGATE_CONFIG", raising=False)


def test_without_flags_the_defaults() -> None:
    assert settings_from() == StackSettings()


def test_every_flag_reaches_its_setting() -> None:
    flags = ["--host", "127.0.0.2", "--port", "1", "--grpc-port", "2", "--transport", "grpcio", "--log-level", "debug", "--insecure"]
    flags += ["--hostname", "a.example", "--hostname", "b.example", "--cors-origin", "https://c.example"]
    settings = settings_from(*flags)
    assert (settings.edge.host, settings.server.host) == ("127.0.0.2", "127.0.0.2")
    assert (settings.edge.port, settings.server.port) == (1, 2)
    assert settings.server.transport == "grpcio"
    assert (settings.edge.log_level, settings.server.log_level) == ("debug", "debug")
    assert settings.edge.insecure
    assert settings.edge.hostnames == "a.example,b.example"
    assert settings.edge.cors_origins == "https://c.example"


def test_a_flag_wins_over_a_variable_even_with_the_default_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORGATE_EDGE_PORT", "9")
    assert settings_from().edge.port == 9
    assert settings_from("--port", "8080").edge.port == 8080


@pytest.mark.parametrize("command", ["serve", "edge", "node", "facade", "infer"])
def test_help_explains_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "TENSORGATE_" not in text
    assert "--" in text


def test_a_wrong_setting_in_the_environment_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TENSORGATE_EDGE_PORT", "many")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "tensorgate serve: TENSORGATE_EDGE_PORT: wanted int, got 'many'\n"


def test_the_same_port_twice(capsys: pytest.CaptureFixture[str], free_port: object) -> None:
    assert callable(free_port)
    port = str(free_port())
    assert main(["serve", "--port", port, "--grpc-port", port]) == 2
    assert capsys.readouterr().err == f"tensorgate serve: --port and --grpc-port are both {port}: choose two\n"
