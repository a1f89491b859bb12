"""The node's internal HTTP listener: ``/metrics`` and ``/health``, served by threads of its own.

A scrape asks the event loop for the figures, which takes it microseconds for each model, and turns them into text on its thread.
``/health`` asks as well: a loop that does not answer is no healthy node.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeVar

from core_grpc.observability.figures import NodeFigures

_log = logging.getLogger(__name__)

_ANSWER_S = 3.0
"""How long the event loop may take to answer."""
_IDLE_S = 10.0
"""How long a connection may say nothing."""

Answer = TypeVar("Answer")


class MetricsServer:
    """Listens from when it is made until it is closed. ``figures`` is called on the event loop that runs when it is made."""

    def __init__(self, host: str, port: int, figures: Callable[[], NodeFigures]) -> None:
        """Raises OSError where the address cannot be had."""
        loop = asyncio.get_running_loop()

        class Handler(_Handler):
            def ask(self) -> tuple[NodeFigures, float]:
                return _on_loop(loop, figures)

        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server_type = type("_Server", (_Server,), {"address_family": family})
        self._server: ThreadingHTTPServer = server_type((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening. Blocks for at most half a second: not for the event loop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _on_loop(loop: asyncio.AbstractEventLoop, ask: Callable[[], Answer]) -> tuple[Answer, float]:
    """The answer, and how long the question waited, in seconds.

    Raises:
        TimeoutError: the loop is too busy.
        RuntimeError: it is closed.
    """
    answered: Future[tuple[Answer, float]] = Future()
    asked = time.monotonic()

    def answer() -> None:
        lag_s = time.monotonic() - asked
        try:
            answered.set_result((ask(), lag_s))
        except Exception as error:  # noqa: BLE001 (it belongs to the thread that waits)
            answered.set_exception(error)

    loop.call_soon_threadsafe(answer)
    return answered.result(_ANSWER_S)


class _Server(ThreadingHTTPServer):
    # A listener of a node that has just ended may linger.
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks the name service who it is.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def ask(self) -> tuple[NodeFigures, float]:
        raise NotImplementedError

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in {"/metrics", "/health"}:
            self._answer(HTTPStatus.NOT_FOUND, b"wanted /metrics or /health\n")
            return
        try:
            figures, lag_s = self.ask()
        except (TimeoutError, RuntimeError):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not answer\n")
            return
        if path == "/health":
            status = HTTPStatus.OK if figures.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, b"ready\n" if figures.is_ready else b"not ready\n")
            return
        from core_grpc.observability.exposition import exposition  # noqa: PLC0415 (only a node that is scraped needs the library)

        body, content_type = exposition(figures, lag_s, ",".join(self.headers.get_all("Accept", ())))
        self._answer(HTTPStatus.OK, body, content_type)

    do_HEAD = do_GET  # noqa: N815 (the base class calls it by this name)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "tensorgate"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        _log.debug(format, *args)
