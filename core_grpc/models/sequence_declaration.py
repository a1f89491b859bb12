"""What ``[sequence]`` of model.toml makes of a model: inputs that callers do not give, and outputs that they do not get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.sequence_config import check_sequence_batching
from core_grpc.models.sequence_controls import SequenceControls
from core_grpc.models.sequence_states import States, StateTensors, states_of
from core_grpc.types import Array, ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class SequenceDeclaration:
    """Control inputs and states of one model."""

    controls: SequenceControls
    states: States
    tensors: StateTensors
    has_rows: bool
    """Whether the model has a batch dimension."""

    def of_one_request(self, rows: int) -> Mapping[str, Array]:
        """Control inputs and states of ``rows`` sequences that one request begins and ends."""
        states = {name: np.repeat(array, rows, axis=0) if self.has_rows else array for name, array in self.states.initial.items()}
        return {**self.controls.of_one_request(rows), **states}

    def public(self, spec: ModelSpec) -> ModelSpec:
        """What callers see of a model that takes and gives all of ``spec``."""
        filled = self.controls.names | set(self.states.outputs)
        return replace(
            spec,
            inputs=tuple(item for item in spec.inputs if item.name not in filled),
            outputs=tuple(item for item in spec.outputs if item.name not in self.states.hidden),
        )


def declare_sequences(
    config: ModelConfig, inputs: Sequence[TensorSpec], tensors: StateTensors, directory: Path, spec: ModelSpec
) -> SequenceDeclaration | None:
    """Holds ``[sequence]`` against the model; None where there is no such table.

    Args:
        inputs: the model's, as model.toml declares them.
        tensors: where its states' rows are.
        directory: the model's.
        spec: all that the engine takes and gives.

    Raises:
        ModelLoadFailed: they do not go together.
    """
    if not config.sequence:
        return None
    has_batch_dimension = spec.max_batch_size > 0
    check_sequence_batching(config.batching, config.queue)
    if spec.decoupled and config.sequence.states:
        raise ModelLoadFailed("model.toml: [[sequence.state]]: a decoupled model keeps its states itself")
    controls = SequenceControls(config.sequence, inputs, has_batch_dimension=has_batch_dimension)
    states = states_of(config.sequence.states, tensors, config.outputs, directory, has_batch_dimension=has_batch_dimension)
    return SequenceDeclaration(controls, states, tensors, has_batch_dimension)
