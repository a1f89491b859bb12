"""Ragged batches: inputs of different lengths run together without padding, one behind the other, and the engine is told where each begins.

As Triton's ragged batching, whose page shows the kinds of batch inputs
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ragged_batching.md). Triton counts by request; counts here are
by row, which is the same for requests of one row and right for larger ones. Pure numpy, on an instance's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from core_grpc.errors import BackendFailed
from core_grpc.scheduler.batch import unstack
from core_grpc.scheduler.batch_buffers import BatchBuffers
from core_grpc.types import Array


class BatchInputKind(StrEnum):
    """What an input that the server makes for a whole batch says about a ragged input, its *source*."""

    ELEMENT_COUNT = "element_count"
    """``[rows]``: elements of each row."""
    ACCUMULATED_ELEMENT_COUNT = "accumulated_element_count"
    """``[rows]``: elements up to the end of each row."""
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "accumulated_element_count_with_zero"
    """``[rows + 1]``: the same behind a zero."""
    MAX_ELEMENT_COUNT_AS_SHAPE = "max_element_count_as_shape"
    """As many elements, of no meaning, as the longest row has."""
    ITEM_SHAPE = "item_shape"
    """``[rows, dimensions]``: the shape of each row."""
    ITEM_SHAPE_FLATTEN = "item_shape_flatten"
    """The same, one row behind the other."""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """An input of the engine that the server makes for each batch."""

    kind: BatchInputKind
    target: str
    """The engine's input."""
    source: str
    """The ragged input that it speaks of."""
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class RaggedForm:
    """What a ragged model's batches look like."""

    ragged: frozenset[str]
    """Inputs whose rows lie one behind the other, as one dimension."""
    batch_inputs: tuple[BatchInput, ...]
    scattered: Mapping[str, str]
    """Outputs whose elements lie one behind the other as those of an input, which is named: each row gets that row's part and shape."""
    is_plain: bool = False

    @property
    def open_inputs(self) -> frozenset[str]:
        """Inputs whose shapes need not be alike in a batch."""
        return self.ragged

    def stack(self, members: Sequence[Mapping[str, Array]], buffers: BatchBuffers) -> Mapping[str, Array]:
        """The members' inputs and the batch's own, as the engine takes them."""
        regular = buffers.stack([{name: array for name, array in member.items() if name not in self.ragged} for member in members])
        flat = {name: np.concatenate([member[name].reshape(-1) for member in members]) for name in self.ragged}
        shapes = {name: [array[name].shape[1:] for array in members for _ in range(array[name].shape[0])] for name in self.ragged}
        made = {item.target: _MAKERS[item.kind](shapes[item.source]).astype(item.dtype) for item in self.batch_inputs}
        return {**regular, **flat, **made}

    def parts(self, outputs: Mapping[str, Array], members: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array] | BackendFailed]:
        """Each member's own part of the outputs; the error for every member where they cannot be cut."""
        counts = [next(iter(member.values())).shape[0] for member in members]
        try:
            regular = unstack({name: array for name, array in outputs.items() if name not in self.scattered}, counts)
            parts: list[dict[str, Array]] = [dict(part) for part in regular]
            for name, source in self.scattered.items():
                for part, array in zip(parts, _scattered(name, outputs[name], [member[source].shape for member in members]), strict=True):
                    part[name] = array
        except BackendFailed as error:
            return [BackendFailed(error.message) for _ in members]
        return [{name: part[name] for name in outputs} for part in parts]


def _scattered(name: str, array: Array, shapes: Sequence[Sequence[int]]) -> list[Array]:
    sizes = [int(np.prod(shape)) for shape in shapes]
    if array.shape[:1] != (sum(sizes),):
        raise BackendFailed(f"output '{name}': wanted {sum(sizes)} elements, as many as its input has, got shape {list(array.shape)}")
    ends = np.cumsum(sizes).tolist()
    return [array[end - size : end].reshape((*shape, *array.shape[1:])) for end, size, shape in zip(ends, sizes, shapes, strict=True)]


_Shapes: TypeAlias = Sequence[Sequence[int]]


def _counts(shapes: _Shapes) -> Array:
    return np.array([int(np.prod(shape)) for shape in shapes])


_MAKERS: Mapping[BatchInputKind, Callable[[_Shapes], Array]] = {
    BatchInputKind.ELEMENT_COUNT: _counts,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT: lambda shapes: np.cumsum(_counts(shapes)),
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: lambda shapes: np.concatenate([[0], np.cumsum(_counts(shapes))]),
    BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: np.zeros(max(_counts(shapes), default=0)),
    BatchInputKind.ITEM_SHAPE: np.array,
    BatchInputKind.ITEM_SHAPE_FLATTEN: lambda shapes: np.array(shapes).reshape(-1),
}
