"""Batches of requests whose shapes differ, and of the sizes that an engine takes: what is missing is filled in, and cut off the answers.

An input with padding is brought to the largest shape among the batch's requests, or to the next of its ``sizes``; rows are added, copies of
the last one, up to the next allowed batch size. An output's dimension that has the name of a padded input's dimension is cut back to
what its own request had there, so no caller sees what stood beside it. Pure numpy, on an instance's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from core_grpc.errors import BackendFailed, InvalidArgument
from core_grpc.scheduler.batch import parts_of
from core_grpc.scheduler.batch_buffers import BatchBuffers
from core_grpc.types import Array


@dataclass(frozen=True, slots=True)
class InputPadding:
    """How one input is filled up."""

    value: bool | int | float | bytes
    """What is filled in; of the input's datatype."""
    sizes: tuple[int, ...]
    """Ascending sizes of a variable dimension that the engine is given; empty for any."""
    axes: Mapping[int, str]
    """Its variable dimensions, beyond the batch dimension, with their names (empty for none)."""


@dataclass(frozen=True, slots=True)
class BatchForm:
    """What a model's batches look like."""

    padding: Mapping[str, InputPadding] = field(default_factory=dict)
    """By input name."""
    cuts: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """By output name: dimensions, and the name that tells how far they go."""
    allowed_batch_sizes: tuple[int, ...] = ()
    """Ascending rows; empty for any."""

    @property
    def open_inputs(self) -> frozenset[str]:
        """Inputs whose shapes need not be alike in a batch."""
        return frozenset(self.padding)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is ever filled in."""
        return not (self.padding or self.allowed_batch_sizes)

    def stack(self, members: Sequence[Mapping[str, Array]], buffers: BatchBuffers) -> Mapping[str, Array]:
        """The members' inputs as one batch, ``[rows, …]`` for each name, good until the next batch.

        Raises:
            InvalidArgument: a member is larger than the largest of the ``sizes``.
            TypeError, ValueError: members that cannot be stacked.
        """
        rows = self._allowed(sum(_rows(member) for member in members))
        return {name: self._filled(name, [member[name] for member in members], rows, buffers) for name in members[0]}

    def parts(self, outputs: Mapping[str, Array], members: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array] | BackendFailed]:
        """Each member's own part of the outputs; the error for every member where they cannot be cut."""
        counts = [_rows(member) for member in members]
        filled = self._allowed(sum(counts)) - sum(counts)
        parts = parts_of(outputs, [*counts, filled] if filled else counts)[: len(members)]
        if not self.cuts:
            return parts
        return [part if isinstance(part, BackendFailed) else self._cut(part, member) for part, member in zip(parts, members, strict=True)]

    def _allowed(self, rows: int) -> int:
        sizes = self.allowed_batch_sizes
        return sizes[bisect_left(sizes, rows)] if sizes and rows <= sizes[-1] else rows

    def _filled(self, name: str, arrays: Sequence[Array], rows: int, buffers: BatchBuffers) -> Array:
        first, padding = arrays[0], self.padding.get(name)
        shape = (rows, *(_padded_shape(name, padding, arrays) if padding else first.shape[1:]))
        if len(arrays) == 1 and first.shape == shape:
            return first
        whole = buffers.array(name, shape, first.dtype)
        start = 0
        for array in arrays:
            stop = start + array.shape[0]
            if array.shape[1:] == shape[1:]:
                np.copyto(whole[start:stop], array, casting="no")
            else:
                whole[start:stop] = padding.value if padding else 0
                np.copyto(whole[(slice(start, stop), *(slice(0, size) for size in array.shape[1:]))], array, casting="no")
            start = stop
        # Copies of the last row: the engine has to take them as it takes that one.
        whole[start:] = whole[start - 1]
        return whole

    def _cut(self, part: Mapping[str, Array], member: Mapping[str, Array]) -> Mapping[str, Array]:
        sizes = {
            label: member[name].shape[axis]
            for name, padding in self.padding.items()
            if name in member
            for axis, label in padding.axes.items()
            if label
        }
        return {name: _cut_array(array, self.cuts.get(name, {}), sizes) for name, array in part.items()}


def _rows(member: Mapping[str, Array]) -> int:
    return int(next(iter(member.values())).shape[0])


def _padded_shape(name: str, padding: InputPadding, arrays: Sequence[Array]) -> Sequence[int]:
    shape = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    for axis in padding.axes:
        shape[axis - 1] = _padded_size(name, axis, padding.sizes, shape[axis - 1])
    return shape


def _padded_size(name: str, axis: int, sizes: Sequence[int], size: int) -> int:
    if not sizes:
        return size
    if size > sizes[-1]:
        raise InvalidArgument(f"input '{name}': wanted at most {sizes[-1]} in dimension {axis} (its padding sizes end there), got {size}")
    return sizes[bisect_left(sizes, size)]


def _cut_array(array: Array, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Array:
    if not axes:
        return array
    return np.ascontiguousarray(array[tuple(slice(0, sizes.get(axes.get(axis, ""))) for axis in range(array.ndim))])
