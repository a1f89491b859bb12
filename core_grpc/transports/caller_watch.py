"""Whether anybody still waits for an answer: the caller's departure and its deadline, watched at no cost to quick requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

_WATCH_AFTER_S = 0.005
"""A request that is answered sooner is not watched at all: a task that waits for the disconnect of every request halves throughput."""


Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def disconnected(receive: Receive) -> None:
    """Waits until the caller has left. To be called once the request's body is read; may be cancelled."""
    # The host owns the future that receive() gives and resolves it when the call is over: a cancelled one it could not resolve.
    # It may first repeat that the body is over.
    while (await asyncio.shield(receive()))["type"] != "http.disconnect":
        continue


class CallerWatch:
    """Cancels the current task when its caller leaves or its deadline passes.

    Only for the task that makes it, which must call ``stop`` when the work is done or cancelled. ``left`` is called late and at most
    once; what it returns completes when the caller has left.
    """

    def __init__(self, left: Callable[[], Awaitable[None]], deadline: float | None) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("CallerWatch belongs into a task")
        self._task: asyncio.Task[Any] = task
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._disconnect: asyncio.Task[None] | None = None
        self._has_cancelled = False
        self.deadline_passed = False
        delay = _WATCH_AFTER_S if deadline is None else min(_WATCH_AFTER_S, deadline - time.monotonic())
        self._deadline = deadline
        self._timer = self._loop.call_later(max(delay, 0.0), self._begin)

    def stop(self) -> bool:
        """Ends the watch; returns whether it had cancelled the task (which then counts as handled)."""
        self._timer.cancel()
        if self._disconnect is not None:
            self._disconnect.cancel()
        if self._has_cancelled:
            self._task.uncancel()
        return self._has_cancelled

    def _begin(self) -> None:
        if self._deadline is not None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                self._expire()
                return
            self._timer = self._loop.call_later(remaining, self._expire)
        self._disconnect = self._loop.create_task(self._await_disconnect())

    def _expire(self) -> None:
        self.deadline_passed = True
        self._cancel()

    async def _await_disconnect(self) -> None:
        await self._left()
        self._cancel()

    def _cancel(self) -> None:
        if not self._has_cancelled:
            self._has_cancelled = True
            self._task.cancel()
