"""``python -m rest_facade``: the facade on uvicorn, configured by the environment (settings.py).

SIGTERM or SIGINT: no new connections, accepted requests finish within the grace, exit 0. A second signal stops at once. A supervisor
may hand over the read end of a pipe in ``TENSORGATE_CONTROL_FD``: the line ``drain`` is like SIGTERM, its end means that the
supervisor is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from rest_facade.app import create_app
from rest_facade.listener import ListenError, listener_url, open_listener
from rest_facade.settings import FacadeSettings, SettingsError, load_settings

_log = logging.getLogger("rest_facade")


class _Server(uvicorn.Server):
    """uvicorn, but any second signal forces, and signals are not raised again after a clean stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del sig, frame
        self.stop()

    def stop(self) -> None:
        """Stops in good order; called again, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def main() -> int:
    """Runs the facade until it is told to stop. Gives the exit code."""
    try:
        settings = load_settings()
        listener = open_listener(settings)
    except (SettingsError, ListenError) as error:
        sys.stderr.write(f"tensorgate facade: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # After its own handlers uvicorn raises the signal once more for those that were there before it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _log.info("listening on %s, core at %s", listener_url(listener), settings.core_address)
    try:
        asyncio.run(_serve(_Server(_uvicorn_config(settings)), listener))
    finally:
        listener.close()
    return 0


async def _serve(server: _Server, listener: socket.socket) -> None:
    _obey_supervisor(server)
    await server.serve(sockets=[listener])


def _uvicorn_config(settings: FacadeSettings) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(settings),
        # Lean and the same everywhere: this process forwards, it does not race.
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="info" if settings.access_log else max(logging.WARNING, logging.getLevelName(settings.log_level.upper())),
        access_log=settings.access_log,
        server_header=False,
        # Nothing here depends on the client's address; headers that claim one are not believed.
        proxy_headers=False,
        timeout_graceful_shutdown=settings.grace_s,
    )


def _obey_supervisor(server: _Server) -> None:
    """Watches the control pipe, when there is one."""
    number = os.environ.get("TENSORGATE_CONTROL_FD", "")
    if not number.isdecimal():
        return
    control = int(number)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(control, 4096)
        if not data:
            # The supervisor died; whatever runs here has nobody to answer to.
            os._exit(1)
        if b"drain\n" in data:
            server.stop()

    loop.add_reader(control, read)


if __name__ == "__main__":
    sys.exit(main())
