"""The socket that the facade listens on, opened before the server starts so that a refusal is one clear line."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from rest_facade.settings import PREFIX, FacadeSettings

_BACKLOG = 2048


class ListenError(Exception):
    """The socket cannot be opened; the message says which and what to do."""


def open_listener(settings: FacadeSettings) -> socket.socket:
    """A listening socket: the Unix socket when one is set (readable and writable by its owner only), else host and port.

    Raises:
        ListenError
    """
    return _unix_listener(settings.unix_socket) if settings.unix_socket else _tcp_listener(settings.host, settings.port)


def listener_url(listener: socket.socket) -> str:
    """For people: where the facade is."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tcp_listener(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise ListenError(f"{PREFIX}HOST: {host} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(f"port {port} on {host} is taken: stop what uses it or set {PREFIX}PORT to another") from error
        raise ListenError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
    return listener


def _unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The socket is the edge's way in: nobody else on this machine may use it.
    umask = os.umask(0o177)
    try:
        _remove_stale(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"{PREFIX}UNIX_SOCKET: cannot listen on {path}: {error.strerror or error}") from error
    except ListenError:
        listener.close()
        raise
    finally:
        os.umask(umask)
    return listener


def _remove_stale(path: str) -> None:
    """A socket that nobody listens on is what a killed process left behind."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise ListenError(f"{PREFIX}UNIX_SOCKET: {path} is taken by a running server")
