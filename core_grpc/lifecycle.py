"""The lives of the server and of a model version, as tables.

Health and readiness are read from these states, never kept beside them. A step that is not in its table raises: it is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar


class ServerState(StrEnum):
    """The server's life. Only SERVING is ready."""

    STARTING = "STARTING"
    SERVING = "SERVING"
    DRAINING = "DRAINING"
    STOPPED = "STOPPED"


class ModelState(StrEnum):
    """A model version's life, in Triton's words. Only READY answers."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


SERVER_STEPS: Mapping[ServerState, frozenset[ServerState]] = {
    ServerState.STARTING: frozenset({ServerState.SERVING, ServerState.DRAINING}),
    ServerState.SERVING: frozenset({ServerState.DRAINING}),
    ServerState.DRAINING: frozenset({ServerState.STOPPED}),
    ServerState.STOPPED: frozenset(),
}

MODEL_STEPS: Mapping[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    ModelState.READY: frozenset({ModelState.UNLOADING, ModelState.UNAVAILABLE}),
    ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE}),
    ModelState.UNAVAILABLE: frozenset({ModelState.LOADING}),
}


State = TypeVar("State", bound=StrEnum)


class Lifecycle(Generic[State]):
    """A current state that only moves along its table, and tells its watchers after each step.

    Not thread-safe: it belongs to the event loop.
    """

    def __init__(self, steps: Mapping[State, frozenset[State]], start: State) -> None:
        self._steps = steps
        self._watchers: list[Callable[[State], None]] = []
        self.state = start
        self.reason = ""
        """Why the current state was entered, in one line; empty when there is nothing to say."""

    def to(self, state: State, reason: str = "") -> None:
        """Moves to ``state``.

        Raises:
            RuntimeError: the table has no such step.
        """
        if state not in self._steps[self.state]:
            raise RuntimeError(f"{type(state).__name__}: no step from {self.state} to {state}")
        self.state, self.reason = state, reason
        for watcher in list(self._watchers):
            watcher(state)

    def watch(self, watcher: Callable[[State], None]) -> Callable[[], None]:
        """Calls ``watcher`` after each step until the returned function is called."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def __repr__(self) -> str:
        return f"<{self.state}{': ' + self.reason if self.reason else ''}>"
