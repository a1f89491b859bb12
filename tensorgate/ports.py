"""The addresses that the services listen on, checked before anything is started so that a refusal is one clear line."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from tensorgate.settings import is_loopback


class DoorError(Exception):
    """An address cannot be listened on; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Door:
    """A TCP address and the flag that changes it."""

    host: str
    port: int
    flag: str

    def taken(self) -> str:
        """For the operator."""
        return f"port {self.port} on {self.host} is taken: stop what listens there or choose another with {self.flag}"

    def is_named_in(self, text: str) -> bool:
        """Whether a program's complaint is about this address."""
        return f":{self.port}" in text or f"port {self.port}" in text

    def resolved(self, *, insecure: bool) -> Door:
        """This door with a numeric address and a real port, known to be free now.

        Raises:
            DoorError: the address is not this machine's, is taken, may not be used, or is open to others without ``insecure``.
        """
        if not insecure and not is_loopback(self.host):
            raise DoorError(
                f"{self.host} can be reached by others, and nothing here encrypts or asks who calls: "
                "name a file of API keys with --keys, or say --insecure if that is wanted"
            )
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        except socket.gaierror as error:
            raise DoorError(f"{self.host} is no address of this machine") from error
        with socket.socket(family, kind, protocol) as probe:
            # A connection of a server that has just ended may linger; that is no reason to refuse.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen()
            except OSError as error:
                raise DoorError(self._refusal(error)) from error
            host, port = probe.getsockname()[:2]
        return Door(str(host), int(port), self.flag)

    def url(self, scheme: str = "http") -> str:
        """For people and their clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  # What to call, not what to bind.
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"

    def _refusal(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return self.taken()
        if error.errno == errno.EACCES:
            return f"port {self.port} on {self.host} needs more rights than this user has: choose one above 1023 with {self.flag}"
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{self.host} is no address of this machine"
        return f"port {self.port} on {self.host}: {error.strerror}"
