"""Answers kept by content, bounded in bytes; the one that was not asked for the longest goes first.

Pure: no clock, no loop. What an entry costs is the caller's to say. A key has two parts: the generation, one for each load of a model,
and the digest of what was asked.

Invariants (``tests/property/test_response_cache.py`` holds them against a model of it, step by step):

* the entries cost ``max_bytes`` at the most, and ``nbytes`` is what they cost together;
* what ``get`` gives is what was last put under that very generation and digest, or nothing;
* an entry goes only because room was needed and every other one was asked for later, or because its generation was forgotten;
* a value that costs more than ``max_bytes`` is not kept and drives nothing else out;
* of a forgotten generation nothing is left.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    nbytes: int


class LruCache(Generic[Value]):
    """See the module's text."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        """What the entries cost together."""
        self._entries: OrderedDict[tuple[int, bytes], _Entry[Value]] = OrderedDict()
        """The one that was not asked for the longest first."""
        self._digests: dict[int, set[bytes]] = {}
        """Of the entries of each generation, so that forgetting one does not look at all of them."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, generation: int, digest: bytes) -> Value | None:
        """The value under a key; None where there is none (any more)."""
        key = (generation, digest)
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, generation: int, digest: bytes, value: Value, nbytes: int) -> bool:
        """Keeps a value that costs ``nbytes``, in place of one under the same key; whether there was room at all."""
        self._remove((generation, digest))
        if nbytes > self.max_bytes:
            return False
        while self.nbytes + nbytes > self.max_bytes:
            self._remove(next(iter(self._entries)))
        self._entries[generation, digest] = _Entry(value, nbytes)
        self._digests.setdefault(generation, set()).add(digest)
        self.nbytes += nbytes
        return True

    def forget(self, generation: int) -> None:
        """Lets go of every value of a generation."""
        for digest in self._digests.get(generation, set()).copy():
            self._remove((generation, digest))

    def _remove(self, key: tuple[int, bytes]) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.nbytes -= entry.nbytes
        generation, digest = key
        of_generation = self._digests[generation]
        of_generation.discard(digest)
        if not of_generation:
            del self._digests[generation]
