"""Gives memory of models that went back to the system.

The C library keeps what was freed for the next who asks, piece by piece: after 300 small models were unloaded, 70 to 100 MB stayed with
the process, of which ``malloc_trim`` gave back all but a few. It takes up to some tens of milliseconds, during which others may wait for
memory, so it runs on a thread, and not more often than every few seconds.
"""

from __future__ import annotations

import asyncio
import ctypes

_PAUSE_S = 5.0

_LIBRARY = ctypes.CDLL(None)


class FreedMemory:
    """See the module's text. Belongs to the event loop."""

    def __init__(self) -> None:
        self._pause: asyncio.Task[None] | None = None
        self._is_due = False

    async def give_back(self) -> None:
        """To be called after something was freed: it is given back now, or with what else is freed in the next seconds."""
        if self._pause and not self._pause.done():
            self._is_due = True
            return
        # Once more after the pause: other threads free their part of what went a moment later.
        self._is_due = True
        self._pause = asyncio.create_task(self._rest(), name="give back memory")
        await asyncio.to_thread(trim)

    async def close(self) -> None:
        """Ends the waiting."""
        if self._pause:
            self._pause.cancel()
            await asyncio.gather(self._pause, return_exceptions=True)

    async def _rest(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        while self._is_due:
            self._is_due = False
            await asyncio.to_thread(trim)
            await asyncio.sleep(_PAUSE_S)


def trim() -> None:
    """Gives free memory back to the system, where the C library can."""
    malloc_trim = getattr(_LIBRARY, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
