"""Whether anybody still waits for an answer: the caller's departure and its deadline, watched at next to no cost to quick requests.

A task that waits for the disconnect of every request would halve throughput, and so would a timer for each under load. Instead, all
calls of a transport are looked at together every ``_TICK_S``: those whose deadline has passed are ended, and only those that have
waited for ``_WATCH_AFTER_S`` get a task that waits for their caller to leave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

_TICK_S = 0.02
_WATCH_AFTER_S = 0.05

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def disconnected(receive: Receive) -> None:
    """Waits until the caller has left. To be called once the request's body is read; may be cancelled."""
    # The host owns the future that receive() gives and resolves it when the call is over: a cancelled one it could not resolve.
    # It may first repeat that the body is over.
    while (await asyncio.shield(receive()))["type"] != "http.disconnect":
        continue


class WatchedCall:
    """One call under watch, in the task that serves it. Ended by ``CallerWatch.leave``."""

    __slots__ = ("began", "deadline", "deadline_passed", "disconnect", "has_cancelled", "left", "task")

    def __init__(self, left: Callable[[], Awaitable[None]], deadline: float | None, began: float, task: asyncio.Task[Any]) -> None:
        self.left = left
        self.deadline = deadline
        self.began = began
        self.task = task
        self.disconnect: asyncio.Task[None] | None = None
        self.has_cancelled = False
        self.deadline_passed = False

    def cancel(self) -> None:
        """Cancels the task, once."""
        if not self.has_cancelled:
            self.has_cancelled = True
            self.task.cancel()


class CallerWatch:
    """The calls of one transport that are being answered. Belongs to one event loop."""

    def __init__(self) -> None:
        self._calls: dict[WatchedCall, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def enter(self, left: Callable[[], Awaitable[None]], deadline: float | None) -> WatchedCall:
        """Watches the current task from now on: it is cancelled when its caller leaves or its deadline passes.

        Args:
            left: called late and at most once; what it returns completes when the caller has left.
            deadline: monotonic seconds.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a watched call belongs into a task")
        call = WatchedCall(left, deadline, time.monotonic(), task)
        self._calls[call] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        return call

    def leave(self, call: WatchedCall) -> bool:
        """Ends the watch; returns whether it had cancelled the task (which then counts as handled)."""
        self._calls.pop(call, None)
        if call.disconnect is not None:
            call.disconnect.cancel()
        if call.has_cancelled:
            call.task.uncancel()
        return call.has_cancelled

    def _tick(self) -> None:
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        for call in self._calls:
            if call.deadline is not None and call.deadline <= now:
                call.deadline_passed = True
                call.cancel()
            elif call.disconnect is None and now - call.began >= _WATCH_AFTER_S:
                call.disconnect = loop.create_task(_cancel_when_left(call))
        self._timer = loop.call_later(_TICK_S, self._tick) if self._calls else None


async def _cancel_when_left(call: WatchedCall) -> None:
    await call.left()
    call.cancel()
