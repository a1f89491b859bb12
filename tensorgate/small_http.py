"""One small HTTP request: how the supervisor asks Envoy's admin interface, the facade and the edge. No HTTP library is worth its memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body. Status 0: nobody answered."""

    status: int
    body: str


Address: TypeAlias = Path | tuple[str, int]
"""A Unix socket's path, or host and port."""


async def request(address: Address, method: str, path: str, timeout_s: float = 2.0) -> Answer:
    """Asks and reads until the server closes. Never raises for a server that is absent, slow or broken."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(address)
            try:
                writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
                answer = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return Answer(0, "")
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = _joined(body)
    status = head[9:12].decode(errors="replace")
    return Answer(int(status) if status.isdecimal() else 0, body.decode(errors="replace"))


def _joined(body: bytes) -> bytes:
    """The content of a chunked body, or of as many chunks as came."""
    content = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        try:
            length = int(size.partition(b";")[0], 16)
        except ValueError:
            break
        if length == 0:
            break
        content += rest[:length]
        body = rest[length + 2 :]
    return content


async def wait_for_ok(address: Address, path: str, poll_s: float = 0.05) -> None:
    """Returns when a GET answers 200."""
    while (await request(address, "GET", path)).status != 200:  # noqa: ASYNC110  # Another process's state has no event.
        await asyncio.sleep(poll_s)


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(address, Path):
        return await asyncio.open_unix_connection(str(address))
    return await asyncio.open_connection(*address)
