"""The memory of one GPU that pipelines share: blocks in size classes, kept for the next who asks, under one budget. Pure: it is given
the calls that allocate and free.

Invariants (tests/property/test_device_pool.py):

* a block is held by one owner at a time, and is as large as was asked for;
* what is held and kept together never exceeds the budget;
* a request is refused only when it would not fit with all kept blocks freed, or the GPU itself has no room;
* after ``close`` and the last release nothing is allocated.

A class is a power of two or half-way to the next, so at most a third of a block is unused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from core_grpc.backends.cuda.driver import CudaError
from core_grpc.errors import LimitExceeded

SMALLEST_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Block:
    """Memory on the GPU."""

    address: int
    nbytes: int
    """Of its class: at least what was asked for."""


class DevicePool:
    """See the module's text. May be used from any thread."""

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None], budget_bytes: int = 0) -> None:
        """``budget_bytes`` of 0 is no limit but the GPU's."""
        self._allocate = allocate
        self._free = free
        self._budget_bytes = budget_bytes
        self._kept: dict[int, list[Block]] = {}
        """By class."""
        self._lock = threading.Lock()
        self._is_closed = False
        self.held_bytes = 0
        """In the hands of owners."""
        self.kept_bytes = 0
        """Allocated, and free for the next who asks."""

    def __repr__(self) -> str:
        return f"<DevicePool: {self.held_bytes} bytes held, {self.kept_bytes} kept>"

    def take(self, nbytes: int) -> Block:
        """A block of at least ``nbytes``; what it holds is whatever was there.

        Raises:
            LimitExceeded: the budget, or the GPU's memory, has no room for it.
            CudaError: the GPU failed otherwise.
        """
        size = block_bytes(nbytes)
        with self._lock:
            if kept := self._kept.get(size):
                block = kept.pop()
                self.kept_bytes -= size
            else:
                block = Block(self._fresh(size), size)
            self.held_bytes += size
        return block

    def give_back(self, block: Block) -> None:
        """The owner is done with it, and so is all work on the GPU that it was given to."""
        with self._lock:
            self.held_bytes -= block.nbytes
            if self._is_closed:
                self._free(block.address)
            else:
                self._kept.setdefault(block.nbytes, []).append(block)
                self.kept_bytes += block.nbytes

    def trim(self) -> None:
        """Frees what nobody holds."""
        with self._lock:
            self._trim()

    def close(self) -> None:
        """Frees what nobody holds, and from now on what is given back; idempotent."""
        with self._lock:
            self._is_closed = True
            self._trim()

    def _fresh(self, size: int) -> int:
        if self._budget_bytes and self.held_bytes + self.kept_bytes + size > self._budget_bytes:
            self._trim()
            if self.held_bytes + size > self._budget_bytes:
                left = self._budget_bytes - self.held_bytes
                raise LimitExceeded(f"the GPU memory pool holds {self._budget_bytes} bytes: wanted {size} more, {left} are left")
        try:
            return self._allocate(size)
        except CudaError as error:
            if not error.is_out_of_memory:
                raise
        self._trim()
        try:
            return self._allocate(size)
        except CudaError as error:
            if not error.is_out_of_memory:
                raise
            raise LimitExceeded(f"the GPU is out of memory: wanted {size} bytes more") from None

    def _trim(self) -> None:
        for blocks in self._kept.values():
            while blocks:
                block = blocks.pop()
                self.kept_bytes -= block.nbytes
                self._free(block.address)
        self._kept.clear()


def block_bytes(nbytes: int) -> int:
    """The size of the class that ``nbytes`` are in."""
    if nbytes <= SMALLEST_BLOCK_BYTES:
        return SMALLEST_BLOCK_BYTES
    power = 1 << (nbytes - 1).bit_length()
    return between if nbytes <= (between := power // 4 * 3) else power
