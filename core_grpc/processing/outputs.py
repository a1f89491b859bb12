"""Derived outputs: what ``[output.X]`` with ``from`` and ``apply`` computes from an output of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core_grpc.errors import ModelLoadFailed
from core_grpc.types import Array, Datatype, TensorSpec

_FLOATS = (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64)


@dataclass(frozen=True, slots=True)
class DerivedOutput:
    """An output that the server adds to the model's own."""

    name: str
    source: str
    """The model's output that it comes from."""
    apply: str
    """A name in ``FUNCTIONS``."""
    spec: TensorSpec
    """FP32, the source's shape."""


def derived_output(name: str, source: TensorSpec, apply: str, *, labels: tuple[str, ...] = (), description: str = "") -> DerivedOutput:
    """The output ``name`` = ``apply(source)``.

    Raises:
        ModelLoadFailed: no such function, or the source is no floating-point tensor with a last dimension.
    """
    if apply not in FUNCTIONS:
        raise ModelLoadFailed(f"[output.{name}] apply wants one of {', '.join(FUNCTIONS)}, got '{apply}'")
    if source.datatype not in _FLOATS or not source.shape:
        raise ModelLoadFailed(
            f"[output.{name}] from wants a floating-point output, got {source.name} of {source.datatype} {list(source.shape)}"
        )
    spec = replace(source, name=name, datatype=Datatype.FP32, labels=labels, description=description)
    return DerivedOutput(name=name, source=source.name, apply=apply, spec=spec)


def apply_derived(outputs: Mapping[str, Array], derived: Sequence[DerivedOutput]) -> Mapping[str, Array]:
    """The model's outputs and, after them, the derived ones."""
    if not derived:
        return outputs
    return {**outputs, **{each.name: FUNCTIONS[each.apply](outputs[each.source]) for each in derived}}


def softmax(scores: Array) -> Array:
    """``exp(x) / sum(exp(x))`` over the last axis, FP32, without overflow; a row with NaN or +inf gives NaN."""
    wide = scores.astype(np.promote_types(scores.dtype, np.float32))
    with np.errstate(invalid="ignore"):
        wide -= wide.max(axis=-1, keepdims=True, initial=-np.inf)
        np.exp(wide, out=wide)
        wide /= wide.sum(axis=-1, keepdims=True)
    return wide.astype(np.float32, copy=False)


def sigmoid(scores: Array) -> Array:
    """``1 / (1 + exp(-x))``, FP32, without overflow."""
    wide = scores.astype(np.promote_types(scores.dtype, np.float32))
    decay = np.exp(-np.abs(wide))
    result: Array = np.where(wide >= 0, 1, decay) / (1 + decay)
    return result.astype(np.float32, copy=False)


FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {"softmax": softmax, "sigmoid": sigmoid}
