"""CUDA graphs by what they were recorded for, a bounded number of them: the least recently used goes. Pure.

A key is recorded when it comes for the second time: shapes that come once would fill the cache and never be launched, and the first run
is where engines still choose algorithms and take memory, which cannot be recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Graph = TypeVar("Graph")

_SEEN_FOR_EACH = 4
"""Keys that are remembered without a graph, for each graph that may be there."""


class GraphCache(Generic[Key, Graph]):
    """See the module's text."""

    def __init__(self, limit: int, destroy: Callable[[Graph], None]) -> None:
        """``limit`` of 0 keeps none; ``destroy`` is called with each graph that goes."""
        self._limit = limit
        self._destroy = destroy
        self._graphs: OrderedDict[Key, Graph] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    def __repr__(self) -> str:
        return f"<GraphCache: {len(self._graphs)} of {self._limit}>"

    def get(self, key: Key) -> Graph | None:
        """The graph, which is the most recently used from now on."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
        return graph

    def is_worth_recording(self, key: Key) -> bool:
        """Whether the key, which has no graph, came before. It has come now."""
        if not self._limit:
            return False
        if key in self._seen:
            self._seen.move_to_end(key)
            return True
        self._seen[key] = None
        if len(self._seen) > self._limit * _SEEN_FOR_EACH:
            self._seen.popitem(last=False)
        return False

    def put(self, key: Key, graph: Graph) -> None:
        """Keeps a graph; the least recently used goes where there are too many."""
        self._graphs[key] = graph
        while len(self._graphs) > self._limit:
            self._destroy(self._graphs.popitem(last=False)[1])

    def clear(self) -> None:
        """Destroys all."""
        while self._graphs:
            self._destroy(self._graphs.popitem()[1])
        self._seen.clear()
