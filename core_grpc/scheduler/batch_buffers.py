"""The memory that an instance's batches are put together in, kept from one batch to the next.

Fresh memory for every batch is what putting it together costs: the kernel hands it out page by page. For eight rows of a small language
model's state (2 MB in 8 tensors) joining into fresh memory takes fifteen times as long as joining into memory that is there.

Belongs to one instance and its thread. What an engine returns must not live in here: ``owned`` sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from core_grpc.types import Array

_WORTH_KEEPING_BYTES = 1 << 14
"""Below, allocating costs as little as looking for what is there."""


Staging: TypeAlias = Callable[[str, int], Array | None]
"""An instance's own memory for an input of that name and size in bytes, as uint8; None where it has none."""


class BatchBuffers:
    """Memory by input name, as large as the largest batch so far, or the instance's own."""

    def __init__(self, staging: Staging | None = None) -> None:
        self._buffers: dict[str, Array] = {}
        self._staging = staging

    def array(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array to fill: it holds what was left there, and the next call for ``name`` gives the same memory again."""
        nbytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or nbytes < _WORTH_KEEPING_BYTES:
            return np.empty(shape, dtype)
        if self._staging is not None and (staging := self._staging(name, nbytes)) is not None:
            return staging.view(dtype).reshape(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._buffers[name] = np.empty(nbytes, np.uint8)
        return buffer[:nbytes].view(dtype).reshape(shape)

    def stack(self, members: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """The members' inputs one under the other, ``[rows of the batch, …]`` for each name; BYTES (object arrays) as well.

        The members have the same names, and the same dtype and shape beyond the first dimension. One member's arrays are given as they
        are; others are good until the next batch.

        Raises:
            TypeError, ValueError: they have not.
        """
        if len(members) == 1:
            return members[0]
        return {name: self._joined(name, [member[name] for member in members]) for name in members[0]}

    def owned(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs, copied where they are views of an input that lies in here (an engine that gives its input back)."""
        if not self._buffers:
            return outputs
        return {
            name: array.copy() if any(np.may_share_memory(array, buffer) for buffer in self._buffers.values()) else array
            for name, array in outputs.items()
        }

    def _joined(self, name: str, arrays: Sequence[Array]) -> Array:
        first = arrays[0]
        rows = sum([array.shape[0] for array in arrays])
        # casting="no": two dtypes in one batch would be a silent cast.
        return np.concatenate(arrays, out=self.array(name, (rows, *first.shape[1:]), first.dtype), casting="no")
