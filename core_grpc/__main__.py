"""A node on grpc.aio: ``python -m core_grpc``. Settings come from the environment (core_grpc/settings.py)."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from core_grpc.observability.logging import configure_logging
from core_grpc.process_control import watch_control
from core_grpc.server import Node
from core_grpc.settings import NodeSettings, SettingsError, load_settings
from core_grpc.transports.grpcio import GrpcioServer

log = logging.getLogger("core_grpc")


async def serve(settings: NodeSettings) -> None:
    """Serves until SIGTERM, SIGINT or the parent asks for a drain; a second signal ends the process at once.

    Raises:
        OSError, SettingsError: an address or a file cannot be had.
    """
    node = Node(settings)
    node.open()
    server = GrpcioServer(node.methods, settings)
    port = server.listen(f"{settings.server.host}:{settings.server.port}")
    if settings.server.unix_socket:
        server.listen(f"unix:{settings.server.unix_socket}")
    draining = asyncio.Event()
    has_notice = True
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: sys.exit(1) if draining.is_set() else draining.set())

    def drain(with_notice: bool) -> None:
        nonlocal has_notice
        has_notice = with_notice
        draining.set()

    watch_control(drain, lambda: sys.exit(1))
    await server.start()
    log.info("listening on %s:%s", settings.server.host, port)
    node.start()
    await draining.wait()
    # grpc.aio counts its own calls: stop() below waits for the answers that are still on their way.
    await node.drain(lambda: 0, with_notice=has_notice)
    await server.stop(1.0)


def main() -> None:
    """Entry point."""
    try:
        settings = load_settings(NodeSettings)
    except SettingsError as error:
        sys.exit(str(error))
    configure_logging(settings.server.log_level)
    try:
        uvloop.run(serve(settings))
    except (OSError, SettingsError) as error:
        sys.exit(str(error))
    except asyncio.CancelledError:
        sys.exit(1)


if __name__ == "__main__":
    main()
