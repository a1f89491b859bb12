"""Addresses checked before anything starts."""

from __future__ import annotations

import socket

import pytest

from tensorgate.ports import Door, DoorError


def test_a_taken_port_is_named_with_its_flag() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DoorError, match=f"port {port} on 127.0.0.1 is taken: .* another with --grpc-port"):
            Door("127.0.0.1", port, "--grpc-port").resolved(insecure=False)


def test_a_port_that_allows_sharing_is_taken_all_the_same() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DoorError, match="is taken"):
            Door("127.0.0.1", other.getsockname()[1], "--port").resolved(insecure=False)


def test_port_0_becomes_a_real_one_and_a_name_an_address() -> None:
    door = Door("localhost", 0, "--port").resolved(insecure=False)
    assert door.host in ("127.0.0.1", "::1")
    assert door.port > 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_an_open_address_must_be_wanted(host: str) -> None:
    with pytest.raises(DoorError, match=f"{host} can be reached by others.*--insecure"):
        Door(host, 0, "--port").resolved(insecure=False)


def test_an_open_address_that_is_wanted() -> None:
    assert Door("0.0.0.0", 0, "--port").resolved(insecure=True).host == "0.0.0.0"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(DoorError, match=f"{host} is no address of this machine"):
        Door(host, 0, "--port").resolved(insecure=True)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("::1", "http://[::1]:80")],
)
def test_urls_can_be_pasted(host: str, url: str) -> None:
    assert Door(host, 80, "--port").url() == url
