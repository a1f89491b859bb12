"""The Python backend in a registry, and a look at its processes from outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.serving import Served
from tests.support.serving import serving as loaded


@asynccontextmanager
async def serving(repository: Path) -> AsyncIterator[Served]:
    """A registry with the repository's models, which leave no process behind."""
    async with loaded(repository) as registry:
        yield registry
    assert not model_processes()


def model_processes() -> list[int]:
    """Their pids."""
    name = b"core_grpc.backends.python.child"
    # Of this process: gateways that other tests have running have theirs.
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if name in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def content(path: Path) -> str:
    """What is written there, within five seconds."""
    for _ in range(250):
        if text := _text_of(path):
            return text
        await asyncio.sleep(0.02)
    raise AssertionError(f"{path.name} was not written")
