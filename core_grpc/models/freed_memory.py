"""Gives memory of models that went back to the system.

The C library keeps what was freed for the next who asks, piece by piece: after 300 small models were unloaded, 70 to 100 MB stayed with
the process, of which ``malloc_trim`` gave back all but a few. It takes up to some tens of milliseconds, during which others may wait for
memory, so it runs on a thread, and not more often than every few seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import suppress

_PAUSE_S = 5.0


class FreedMemory:
    """See the module's text. Belongs to the event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._is_due = False

    def give_back(self) -> None:
        """To be called after something large was freed: it is given back now, or with what else is freed in the next seconds."""
        self._is_due = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="give back memory")

    async def close(self) -> None:
        """Ends the waiting."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._is_due:
            self._is_due = False
            await asyncio.to_thread(trim)
            await asyncio.sleep(_PAUSE_S)


def trim() -> None:
    """Gives free memory back to the system, where the C library can."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
