"""The ASGI application that an Envoy hosts: ``core_grpc.transports.asgi_app:app``.

One lifespan is one node: the host must start it exactly once (a second start is refused, since it would be a second core in the
process with its own models).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

from core_grpc.observability.logging import configure_logging
from core_grpc.process_control import watch_control
from core_grpc.server import Node
from core_grpc.settings import NodeSettings, load_settings
from core_grpc.transports.asgi_grpc import GrpcAsgiApp, Scope, Send
from core_grpc.transports.caller_watch import Receive

log = logging.getLogger(__name__)


class NodeApp:
    """Lifespan and calls of one node."""

    def __init__(self) -> None:
        self._calls: GrpcAsgiApp | None = None
        self._drain: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if self._calls is not None and scope["type"] == "http":
            await self._calls(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            raise RuntimeError(f"ASGI scope {scope['type']} is not served")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._start()
        except Exception as error:
            # Said here because a host may not say it; the supervisor shows a child's last lines.
            log.exception("the node cannot start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _start(self) -> None:
        if self._calls is not None:
            raise RuntimeError("the host started a second lifespan: one process is one node")
        settings = load_settings(NodeSettings)
        configure_logging(settings.server.log_level)
        node = Node(settings)
        node.open()
        limits = settings.limits
        self._calls = calls = GrpcAsgiApp(node.methods, limits.max_message_bytes, limits.max_request_s, node.processing_pool)

        def drain(with_notice: bool) -> None:
            if self._drain is None:
                self._drain = asyncio.create_task(node.drain(lambda: calls.active_calls, with_notice=with_notice), name="drain")

        watch_control(drain, _end_process)
        node.start()


def _end_process() -> None:
    """Ends the host: nobody is left who could."""
    os.kill(os.getpid(), signal.SIGTERM)


app: Any = NodeApp()
