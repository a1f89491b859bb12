"""What is read as loopback, and lists in settings."""

from __future__ import annotations

import pytest

from core_grpc.settings import SettingsError, load_settings
from tensorgate.settings import EdgeProcessSettings, is_loopback, listed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.evil.example"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_lists() -> None:
    assert listed("") == ()
    assert listed(" a, b ,,c ") == ("a", "b", "c")


def test_edge_settings_come_from_the_environment() -> None:
    settings = load_settings(EdgeProcessSettings, {"TENSORGATE_EDGE_PORT": "81", "TENSORGATE_LIMITS_MAX_MESSAGE_BYTES": "2048"})
    assert (settings.edge.port, settings.limits.max_message_bytes) == (81, 2048)
    with pytest.raises(SettingsError, match="TENSORGATE_EDGE_PRT: no such setting; edge has host, port"):
        load_settings(EdgeProcessSettings, {"TENSORGATE_EDGE_PRT": "81"})
