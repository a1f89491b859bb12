"""Moves usage from the meter to the disk: every few seconds, at the end of each minute, and when the node is drained.

Written by a thread, so that the event loop waits for no disk. What could not be written is kept and tried again with the next; what a crash
takes with it is what was metered since the last write.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from core_grpc.observability.figures import UsageFigures, UsageKey
from core_grpc.observability.usage_meter import UsageMeter
from core_grpc.observability.usage_store import AUTO, UsageStore, database_path
from core_grpc.settings import SettingsError

_log = logging.getLogger(__name__)

_MINUTE_S = 60


class UsageKeeper:
    """Begins when it is made, on the event loop that runs then. ``clock`` is seconds since the epoch."""

    def __init__(self, store: UsageStore, flush_s: float, meter: UsageMeter, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._flush_s = flush_s
        self._meter = meter
        self._clock = clock
        self._minute = int(clock() // _MINUTE_S)
        self._unwritten: dict[int, dict[UsageKey, UsageFigures]] = {}
        """By minute."""
        self._is_failing = False
        self._closing = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._task = asyncio.create_task(self._run(), name="usage")

    async def flush(self) -> None:
        """Writes what was metered until now. One at a time."""
        self._collect()
        loop = asyncio.get_running_loop()
        for minute in sorted(self._unwritten):
            try:
                await loop.run_in_executor(self._pool, self._store.add, minute, self._unwritten[minute])
            except sqlite3.Error as error:
                if not self._is_failing:
                    _log.error("usage cannot be written and is kept for the next try: %s", error)
                self._is_failing = True
                return
            del self._unwritten[minute]
            self._is_failing = False

    async def close(self) -> None:
        """Writes the rest, and lets go of the file."""
        self._closing.set()
        await self._task
        await asyncio.get_running_loop().run_in_executor(self._pool, self._store.close)
        self._pool.shutdown(wait=False)

    async def _run(self) -> None:
        while not self._closing.is_set():
            to_next_minute = (self._minute + 1) * _MINUTE_S - self._clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), max(min(self._flush_s, to_next_minute), 0))
            await self.flush()

    def _collect(self) -> None:
        """What was taken belongs to the minute that the last collection was in: the next one is collected right after its end."""
        taken = self._meter.take()
        minute, self._minute = self._minute, int(self._clock() // _MINUTE_S)
        if not taken:
            return
        kept = self._unwritten.setdefault(minute, {})
        for key, figures in taken.items():
            kept[key] = kept.get(key, UsageFigures()).plus(figures)


def opened_store(setting: str) -> UsageStore | None:
    """The file that the setting ``usage.database`` names; None, with a warning, where the usual place cannot be written.

    Raises:
        SettingsError: a file that was named cannot be written.
    """
    path = database_path(setting)
    try:
        return UsageStore(path)
    except (OSError, sqlite3.Error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        if setting != AUTO:
            raise SettingsError(f"TENSORGATE_USAGE_DATABASE: cannot keep usage in {path}: {reason}") from error
        _log.warning("usage is not kept: %s cannot be written (%s); set usage.database to a file, or to off", path, reason)
        return None
