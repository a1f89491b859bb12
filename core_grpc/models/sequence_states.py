"""Implicit state: outputs of a model that are its inputs in the next request of the same sequence. The server keeps them between the two.

As Triton's ``sequence_batching.state``; callers do not see these inputs, nor the outputs where model.toml has no table ``[output.NAME]``
for one. Beyond Triton's, a state may have its batch dimension anywhere (the state of a recurrent network is often ``[layers, batch, n]``):
it is moved in front on the way out of the engine and back on the way in, so that everything between sees rows first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from core_grpc.backends.base import ModelInstance, ModelRequest, RequestInstance
from core_grpc.errors import GatewayError, ModelLoadFailed, quoted
from core_grpc.models.repository import file_in_model
from core_grpc.models.sequence_config import StateConfig
from core_grpc.types import Array, Datatype, TensorSpec

_LARGEST_INITIAL = 1 << 30


@dataclass(frozen=True, slots=True)
class StateTensors:
    """A model's tensors with the rows of its states in front."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_axes: Mapping[str, int]
    """Where the batch dimension of a state is in the model, by name; only those where it is not the first."""
    output_axes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class States:
    """The states of one model."""

    outputs: Mapping[str, str]
    """Name of the output by that of the input."""
    initial: Mapping[str, Array]
    """What a sequence begins with, by input: one row."""
    hidden: frozenset[str]
    """Outputs that callers do not see."""
    is_variable: bool
    """Whether a sequence's states may have other shapes than another's."""

    def next(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """What the next request of a sequence is given, from the outputs of one row: arrays that hold no more memory than they need."""
        return {name: _own(outputs[output]) for name, output in self.outputs.items()}

    def group(self, states: Mapping[str, Array]) -> Hashable:
        """Equal for states that may share a batch."""
        return tuple(array.shape for array in states.values()) if self.is_variable else None

    def shown(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs that callers see."""
        return {name: array for name, array in outputs.items() if name not in self.hidden} if self.hidden else outputs


def declared_states(states: Sequence[StateConfig]) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs whose datatype and shape ``[[sequence.state]]`` gives, for backends that cannot read them from the model."""
    declared = [(item, item.datatype, item.shape) for item in states]
    inputs = tuple(TensorSpec(item.input, datatype, shape) for item, datatype, shape in declared if datatype and shape is not None)
    outputs = tuple(TensorSpec(item.output, datatype, shape) for item, datatype, shape in declared if datatype and shape is not None)
    return inputs, outputs


def state_tensors(
    states: Sequence[StateConfig], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int | None
) -> StateTensors:
    """The model's tensors as the server sees them; ``max_batch_size`` as model.toml says.

    Raises:
        ModelLoadFailed: a state is none of the model's tensors, or nobody can tell which dimension is its batch.
    """
    names = {state.input for state in states}
    has_batch = max_batch_size != 0 and all(item.shape[:1] == (-1,) for item in inputs if item.name not in names)
    made: dict[str, tuple[tuple[TensorSpec, ...], Mapping[str, int]]] = {}
    for role, specs in (("input", inputs), ("output", outputs)):
        axes: dict[str, int] = {}
        by_name = {item.name: item for item in specs}
        for state in states:
            name = state.input if role == "input" else state.output
            if name not in by_name:
                raise ModelLoadFailed(f"model.toml: [sequence.state] {role}: wanted one of {', '.join(by_name)}, got {quoted(name)}")
            if has_batch and (axis := _batch_axis(by_name[name], state.batch_axis)):
                axes[name] = axis
        made[role] = tuple(_rows_first(item, axes.get(item.name, 0)) for item in specs), axes
    return StateTensors(made["input"][0], made["output"][0], made["input"][1], made["output"][1])


def states_of(
    configs: Sequence[StateConfig], tensors: StateTensors, shown: Mapping[str, object], directory: Path, *, has_batch_dimension: bool
) -> States:
    """The states, with what they begin with; ``shown`` has the outputs that callers see, ``directory`` is the model's.

    Raises:
        ModelLoadFailed: an output cannot be its state's input, or ``initial`` cannot be what it begins with.
    """
    inputs, outputs = ({item.name: item for item in items} for items in (tensors.inputs, tensors.outputs))
    initial: dict[str, Array] = {}
    for config in configs:
        before, after = inputs[config.input], outputs[config.output]
        is_fitting = len(before.shape) == len(after.shape) and all(
            one == other or -1 in (one, other) for one, other in zip(before.shape, after.shape, strict=True)
        )
        if before.datatype is not after.datatype or not is_fitting:
            raise ModelLoadFailed(
                f"model.toml: [sequence.state] output: wanted one like '{before.name}', {before.datatype} {list(before.shape)}, "
                f"got '{after.name}', {after.datatype} {list(after.shape)} (the batch dimension in front)"
            )
        initial[before.name] = _initial(config, before, directory, has_batch_dimension=has_batch_dimension)
    row = slice(1 if has_batch_dimension else 0, None)
    return States(
        {config.input: config.output for config in configs},
        initial,
        frozenset(config.output for config in configs if config.output not in shown),
        any(-1 in inputs[config.input].shape[row] for config in configs),
    )


def in_model_layout(instance: ModelInstance | RequestInstance, tensors: StateTensors) -> ModelInstance | RequestInstance:
    """The instance, taking and giving states with their rows in front."""
    if not (tensors.input_axes or tensors.output_axes):
        return instance
    return _MovingRequests(instance, tensors) if isinstance(instance, RequestInstance) else _MovingArrays(instance, tensors)


class _MovingArrays:
    def __init__(self, inner: ModelInstance, tensors: StateTensors) -> None:
        self._inner = inner
        self._tensors = tensors

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return _moved(self._inner.execute(_moved(inputs, self._tensors.input_axes, back=True)), self._tensors.output_axes)

    def close(self) -> None:
        self._inner.close()


class _MovingRequests:
    def __init__(self, inner: RequestInstance, tensors: StateTensors) -> None:
        self._inner = inner
        self._tensors = tensors

    def execute_requests(self, requests: Sequence[ModelRequest]) -> Sequence[Mapping[str, Array] | GatewayError]:
        parts = self._inner.execute_requests([_MovedRequest(request, self._tensors.input_axes) for request in requests])
        return [part if isinstance(part, GatewayError) else _moved(part, self._tensors.output_axes) for part in parts]

    def close(self) -> None:
        self._inner.close()


class _MovedRequest:
    def __init__(self, inner: ModelRequest, axes: Mapping[str, int]) -> None:
        self._inner = inner
        self.inputs = _moved(inner.inputs, axes, back=True)
        self.request = inner.request

    @property
    def is_abandoned(self) -> bool:
        return self._inner.is_abandoned


def _moved(arrays: Mapping[str, Array], axes: Mapping[str, int], *, back: bool = False) -> Mapping[str, Array]:
    moved = dict(arrays)
    for name, axis in axes.items():
        if name in moved and moved[name].ndim > axis:
            source, destination = (0, axis) if back else (axis, 0)
            moved[name] = np.ascontiguousarray(np.moveaxis(moved[name], source, destination))
    return moved


def _own(array: Array) -> Array:
    """A view of a batch would keep the whole batch."""
    return array if array.base is None else array.copy()


def _batch_axis(spec: TensorSpec, declared: int | None) -> int:
    if declared is not None:
        if declared >= len(spec.shape):
            raise ModelLoadFailed(
                f"model.toml: [sequence.state] batch_axis: wanted 0 to {len(spec.shape) - 1} for '{spec.name}', got {declared}"
            )
        return declared
    variable = [axis for axis, size in enumerate(spec.shape) if size == -1]
    if len(variable) > 1 and 0 not in variable:
        raise ModelLoadFailed(
            f"model.toml: [sequence.state]: wanted batch_axis for '{spec.name}', "
            f"whose shape {list(spec.shape)} has several variable dimensions"
        )
    return 0 if 0 in variable or not variable else variable[0]


def _rows_first(spec: TensorSpec, axis: int) -> TensorSpec:
    if not axis:
        return spec
    names = spec.dimension_names and (spec.dimension_names[axis], *spec.dimension_names[:axis], *spec.dimension_names[axis + 1 :])
    return replace(spec, shape=(spec.shape[axis], *spec.shape[:axis], *spec.shape[axis + 1 :]), dimension_names=names)


def _initial(config: StateConfig, spec: TensorSpec, directory: Path, *, has_batch_dimension: bool) -> Array:
    """One row, with the batch dimension in front where there is one."""
    shape = spec.shape[1:] if has_batch_dimension else spec.shape
    array = _from_file(config, spec, shape, directory) if config.initial else _zeros(config, spec, shape)
    return array[np.newaxis] if has_batch_dimension else array


def _zeros(config: StateConfig, spec: TensorSpec, shape: Sequence[int]) -> Array:
    if -1 in shape:
        raise ModelLoadFailed(
            f"model.toml: [sequence.state] initial: wanted a .npy file, because '{config.input}' is variable beyond the batch, "
            f"got nothing for {list(shape)}"
        )
    return np.full(shape, b"", object) if spec.datatype is Datatype.BYTES else np.zeros(shape, spec.datatype.dtype)


def _from_file(config: StateConfig, spec: TensorSpec, shape: Sequence[int], directory: Path) -> Array:
    where = f"model.toml: [sequence.state] initial {quoted(config.initial)}"
    path = file_in_model(directory, config.initial)
    try:
        if spec.datatype is Datatype.BYTES or not path.is_file() or path.stat().st_size > _LARGEST_INITIAL:
            raise ModelLoadFailed(f"{where}: wanted a file of at most {_LARGEST_INITIAL} bytes, for a state of numbers")
        array: Array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.fromfile(path, spec.datatype.dtype)
        if path.suffix != ".npy" and -1 not in shape:
            array = array.reshape(shape)
    except (OSError, ValueError):
        raise ModelLoadFailed(f"{where}: wanted {spec.datatype} {list(shape)}, as .npy or as raw values, got something else") from None
    is_fitting = array.ndim == len(shape) and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
    if array.dtype != spec.datatype.dtype or not is_fitting:
        raise ModelLoadFailed(f"{where}: wanted {spec.datatype} {list(shape)} without the batch dimension, got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)
