"""The memory of one lane: for each tensor a pinned array on the host and a block on the GPU, as large as the largest batch so far.

A lane works on one batch at a time and waits for its end, so nothing here is written while a copy still reads it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core_grpc.backends.cuda.device import CudaDevice
from core_grpc.backends.cuda.driver import CudaError
from core_grpc.backends.cuda.pool import Block, block_bytes
from core_grpc.errors import LimitExceeded
from core_grpc.types import Array


@dataclass(frozen=True, slots=True)
class _Pinned:
    address: int
    array: Array
    """uint8, over all of it."""


@dataclass(slots=True)
class LaneBuffers:
    """See the module's text. Belongs to one thread, on which its GPU is in use."""

    device: CudaDevice
    generation: int = 0
    """Changes when an address on the GPU does: what was recorded with the old ones is worthless then."""
    _pinned: dict[str, _Pinned] = field(default_factory=dict)
    _blocks: dict[str, Block] = field(default_factory=dict)

    def pinned(self, name: str, nbytes: int) -> Array:
        """Pinned memory for the tensor, uint8 ``[nbytes]``; the same as before where that is large enough.

        Raises:
            LimitExceeded: the system has no more memory that can be pinned.
        """
        pinned = self._pinned.get(name)
        if pinned is None or pinned.array.nbytes < nbytes:
            if pinned is not None:
                del self._pinned[name]
                self.device.driver.free_pinned(pinned.address)
            pinned = self._pinned[name] = self._fresh_pinned(block_bytes(nbytes))
        return pinned.array[:nbytes]

    def address_of_pinned(self, name: str) -> int:
        """Where ``pinned`` of that name begins."""
        return self._pinned[name].address

    def on_device(self, name: str, nbytes: int) -> int:
        """The address of at least ``nbytes`` on the GPU for the tensor.

        Raises:
            LimitExceeded: the pool has no room.
        """
        block = self._blocks.get(name)
        if block is None or block.nbytes < nbytes:
            if block is not None:
                del self._blocks[name]
                self.device.pool.give_back(block)
            self.generation += 1
            block = self._blocks[name] = self.device.pool.take(nbytes)
        return block.address

    def holds(self, name: str, array: Array) -> bool:
        """Whether the array is the beginning of the pinned memory of that name: it need not be copied there."""
        pinned = self._pinned.get(name)
        return pinned is not None and array.ctypes.data == pinned.address

    def give_back(self) -> None:
        """Gives the memory on the GPU back to the pool. All work with it is done."""
        self.generation += 1
        while self._blocks:
            self.device.pool.give_back(self._blocks.popitem()[1])

    def close(self) -> None:
        """Gives everything back; idempotent. All work with it is done."""
        self.give_back()
        while self._pinned:
            pinned = self._pinned.popitem()[1]
            if not self.device.fault:
                self.device.driver.free_pinned(pinned.address)

    def _fresh_pinned(self, nbytes: int) -> _Pinned:
        try:
            address = self.device.driver.allocate_pinned(nbytes)
        except CudaError as error:
            if not error.is_out_of_memory:
                raise
            raise LimitExceeded(f"no more host memory can be pinned: wanted {nbytes} bytes") from None
        content: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        return _Pinned(address, np.frombuffer(content, np.uint8))
