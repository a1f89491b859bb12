"""``reshape`` of an input or output: callers see one shape and the model has another, of as many elements. As Triton's ``reshape``.

A model whose outputs are a number for each row (shape ``[batch]``) is served with a dimension of 1, which is how Triton's users declare it.
The engine is wrapped, so that everything around it knows the callers' shapes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from core_grpc.backends.base import ON_CPU, LoadedModel, ModelInstance, Placement
from core_grpc.errors import ModelLoadFailed
from core_grpc.models.model_config import InputConfig, ModelConfig, OutputConfig
from core_grpc.types import Array, TensorSpec

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReshapedModel:
    """A loaded model with the callers' shapes."""

    inner: LoadedModel
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_shapes: Mapping[str, Shape]
    """What the engine takes, by name of the inputs that are reshaped."""
    output_shapes: Mapping[str, Shape]
    """What callers get, by name of the outputs that are reshaped."""

    def create_instance(self, placement: Placement = ON_CPU, /) -> ModelInstance:
        """An instance of the engine's, wrapped."""
        return _ReshapingInstance(self.inner.create_instance(placement), self.input_shapes, self.output_shapes)

    def close(self) -> None:
        """Frees the engine's model."""
        self.inner.close()


@dataclass(frozen=True, slots=True)
class _ReshapingInstance:
    inner: ModelInstance
    input_shapes: Mapping[str, Shape]
    output_shapes: Mapping[str, Shape]

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return _reshaped(self.inner.execute(_reshaped(inputs, self.input_shapes)), self.output_shapes)

    def close(self) -> None:
        self.inner.close()


def has_reshape(config: ModelConfig) -> bool:
    """Whether a tensor of the model is reshaped."""
    tensors: list[InputConfig | OutputConfig] = [*config.inputs.values(), *config.outputs.values()]
    return any(item.reshape is not None for item in tensors)


def reshaped_model(loaded: LoadedModel, config: ModelConfig) -> ReshapedModel:
    """The model as model.toml has it.

    Raises:
        ModelLoadFailed: a ``reshape`` is not the model's shape, or has another number of elements than ``shape``.
    """
    inputs = tuple(_seen("input", spec, config.inputs.get(spec.name)) for spec in loaded.inputs)
    outputs = tuple(_seen("output", spec, config.outputs.get(spec.name)) for spec in loaded.outputs)
    taken = {name: item.reshape for name, item in config.inputs.items() if item.reshape is not None}
    given = {name: item.shape for name, item in config.outputs.items() if item.reshape is not None and item.shape is not None}
    return ReshapedModel(loaded, inputs, outputs, taken, given)


def _seen(role: str, spec: TensorSpec, config: InputConfig | OutputConfig | None) -> TensorSpec:
    if config is None or config.reshape is None:
        return spec
    where, shape, reshape = f"model.toml: [{role}.{spec.name}] reshape", config.shape, config.reshape
    if shape is None:
        raise ModelLoadFailed(f"{where}: wanted a shape beside it, which callers see")
    if len(reshape) != len(spec.shape) or any(own not in (-1, size) for own, size in zip(spec.shape, reshape, strict=True)):
        raise ModelLoadFailed(f"{where}: wanted {list(spec.shape)}, as the model has it, got {list(reshape)}")
    batch = reshape[:1] == shape[:1] == (-1,)
    seen, own = shape[batch:], reshape[batch:]
    is_same = seen.count(-1) == own.count(-1) <= 1 and prod(seen) == prod(own)
    if not is_same:
        raise ModelLoadFailed(
            f"{where}: wanted as many elements as shape {list(shape)}, with at most one variable size, got {list(reshape)}"
        )
    names = (spec.dimension_names[0], *("" for _ in shape[1:])) if batch and spec.dimension_names else ()
    return replace(spec, shape=shape, dimension_names=names)


def _reshaped(arrays: Mapping[str, Array], shapes: Mapping[str, Shape]) -> Mapping[str, Array]:
    return {name: array.reshape(_sizes(array, shapes[name])) if name in shapes else array for name, array in arrays.items()}


def _sizes(array: Array, shape: Shape) -> Shape:
    """With the array's rows where both begin with a variable size: the other variable size, if any, is what is left."""
    return (array.shape[0], *shape[1:]) if shape[:1] == (-1,) and array.ndim else shape
