"""How calls end, by method and status. Both names come from our own tables: no caller can make a new one."""

from __future__ import annotations

from collections.abc import Mapping

from core_grpc.errors import StatusCode


class RpcCounts:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def of(self, path: str) -> list[int]:
        """The counters of a method, by status number; whoever serves the method adds to them."""
        return self._counts.setdefault(path, [0] * len(StatusCode))

    def figures(self) -> Mapping[tuple[str, str], int]:
        """By method and status name, without those that never happened."""
        return {(path, StatusCode(code).name): n for path, counts in self._counts.items() for code, n in enumerate(counts) if n}
