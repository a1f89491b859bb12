"""Work on one name at a time, in order; work on different names does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Holds nothing for a name that nobody works on or waits for. Belongs to the event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """With the number of those who have it or wait for it."""

    def __contains__(self, name: str) -> bool:
        """Whether somebody works on the name or waits to."""
        return name in self._locks

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Waits for its turn."""
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            users = self._locks[name][1] - 1
            if users:
                self._locks[name] = (lock, users)
            else:
                del self._locks[name]
