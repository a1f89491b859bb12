"""Tensors of models that cannot say themselves what they take and give: model.toml declares them."""

from __future__ import annotations

from dataclasses import replace

from core_grpc.types import TensorSpec


def with_batch_name(spec: TensorSpec) -> TensorSpec:
    """A variable first dimension is the batch, by the name that inputs and outputs share."""
    if spec.shape and spec.shape[0] == -1:
        return replace(spec, dimension_names=("batch", *("" for _ in spec.shape[1:])))
    return spec
