"""Keeps what is served in step with the repository on disk: ``models.control = "poll"``.

It looks when the file system reports a change, when a change may have settled, and every ``models.poll_interval_s`` in any case: network
file systems report nothing. Looking runs on a thread. What to do is decided by ``change_detection.py``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from core_grpc.errors import GatewayError, ServerDraining
from core_grpc.models.change_detection import ChangeDetector
from core_grpc.models.fingerprints import fingerprints
from core_grpc.models.repository_control import RepositoryControl

_log = logging.getLogger(__name__)

_PARALLEL_LOADS = 4
_SILENCE_MS = 500
"""After how long without a change it comes back."""
_EVENT_STEP_MS = 100
"""How often the watching thread hands over what it was told, and looks whether it is to stop."""


class RepositoryPoller:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, repository: Path, control: RepositoryControl, interval_s: float, settle_s: float) -> None:
        self._repository = repository
        self._control = control
        self._interval_s = interval_s
        self._settle_s = settle_s
        self._detector = ChangeDetector(settle_s, {})
        self._loads = asyncio.Semaphore(_PARALLEL_LOADS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._told = asyncio.Event()

    async def first_look(self) -> None:
        """Takes what is there as known. To be called before it is loaded, so that what changes during the load is seen afterwards."""
        self._detector = ChangeDetector(self._settle_s, await asyncio.to_thread(fingerprints, self._repository))

    async def run(self) -> None:
        """Follows the repository until it is cancelled; loads that have begun are left to ``RepositoryControl.close``."""
        is_over = threading.Event()
        loop = asyncio.get_running_loop()
        tell = self._told.set
        watching = threading.Thread(target=_watch, args=(self._repository, is_over, loop, tell), name="repository-watch", daemon=True)
        watching.start()
        try:
            while True:
                await self._look()
                await self._wait()
        finally:
            is_over.set()
            for task in self._tasks:
                task.cancel()

    async def _wait(self) -> None:
        due = self._detector.next_look()
        if due is not None:
            # A long copy reports changes without end; what is pending is looked at once it may have settled, and all else with it.
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._told.wait()

    async def _look(self) -> None:
        self._told.clear()
        try:
            found = await asyncio.to_thread(fingerprints, self._repository)
        except OSError as error:
            # What is served goes on: a repository that is away for a while (a mount) has not lost its models.
            _log.warning("the model repository cannot be read, so nothing is changed: %s", error.strerror)
            return
        changes = self._detector.look(time.monotonic(), found)
        for name in changes.changed:
            self._begin(name, self._control.load)
        for name in changes.removed:
            self._begin(name, self._control.remove)

    def _begin(self, name: str, change: Callable[[str], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._change(name, change), name=f"poll {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change(self, name: str, change: Callable[[str], Awaitable[None]]) -> None:
        async with self._loads:
            try:
                await change(name)
            except ServerDraining:
                return
            except GatewayError as error:
                # The index says it as well. It is tried again when the files are others.
                _log.error("%s", error.message)


def _watch(repository: Path, is_over: threading.Event, loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
    """Calls ``tell`` on the loop after changes below ``repository``, on a thread of its own."""
    from watchfiles import watch  # noqa: PLC0415 (only where a repository is polled)

    # It writes a line for every change; what comes of it has lines of its own.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    is_new = True
    watched = watch(
        repository,
        watch_filter=None,
        stop_event=is_over,
        debounce=_EVENT_STEP_MS,
        step=_EVENT_STEP_MS,
        rust_timeout=_SILENCE_MS,
        yield_on_timeout=True,
    )
    try:
        for changes in watched:
            # Once in any case: what changed before the watch began was reported to nobody.
            if changes or is_new:
                loop.call_soon_threadsafe(tell)
            is_new = False
    except RuntimeError:
        if not is_over.is_set():
            raise
    except OSError as error:
        _log.warning("the file system does not report changes of the model repository (%s); it is looked at in intervals", error.strerror)
