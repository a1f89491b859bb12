"""The private directory of a gateway, and what the services are made of."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from core_grpc.settings import ServerSettings
from tensorgate.ports import Door
from tensorgate.stack import chosen_transport, node_service, remove_stale_directories, run_directory


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("tensorgate.stack._SOCKET_PATH_BYTES", 1000)
    return tmp_path


def age(directory: Path) -> None:
    os.utime(directory / "lock", (0, 0))


def test_only_we_may_enter_and_nothing_is_left(parent: Path) -> None:
    with run_directory() as directory:
        assert directory.parent == parent
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "core.sock").touch()
    assert list(parent.iterdir()) == []


def test_a_long_way_to_the_temporary_directory_is_avoided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with run_directory() as directory:
        assert directory.parent == Path("/tmp")


def test_what_a_killed_gateway_left_is_removed_and_a_living_one_is_not(parent: Path) -> None:
    killed, foreign = parent / "tensorgate-killed", parent / "tensorgate-without-lock"
    for directory in (killed, foreign):
        directory.mkdir()
    (killed / "lock").touch()
    age(killed)
    with run_directory() as living:
        age(living)
        remove_stale_directories(parent)
        assert living.exists()
        assert not killed.exists()
        assert foreign.exists()


def test_a_directory_that_is_being_made_is_left_alone(parent: Path) -> None:
    (parent / "tensorgate-young").mkdir()
    (parent / "tensorgate-young" / "lock").touch()
    remove_stale_directories(parent)
    assert (parent / "tensorgate-young").exists()


def test_the_transport_falls_back_where_python_has_no_shared_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_transport(ServerSettings()) == ("envoy", "")
    monkeypatch.setattr("core_grpc.transports.envoy_host.shared_libpython", lambda: None)
    transport, why = chosen_transport(ServerSettings())
    assert transport == "grpcio"
    assert "without a shared libpython" in why
    assert chosen_transport(ServerSettings(transport="envoy")) == ("envoy", "")


def test_a_node_on_grpcio_gets_its_addresses_by_the_environment(tmp_path: Path) -> None:
    door = Door("127.0.0.1", 50051, "--port")
    service = node_service(ServerSettings(transport="grpcio"), tmp_path, [door], {"HOME": "/x"}, "/run/core.sock")
    assert list(service.command.argv)[1:] == ["-m", "core_grpc"]
    assert service.command.env == {
        "HOME": "/x",
        "TENSORGATE_SERVER_HOST": "127.0.0.1",
        "TENSORGATE_SERVER_PORT": "50051",
        "TENSORGATE_SERVER_UNIX_SOCKET": "/run/core.sock",
    }
