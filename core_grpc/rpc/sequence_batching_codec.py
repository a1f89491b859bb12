"""``[sequence]`` of model.toml as Triton's ``ModelSequenceBatching``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core_grpc.models.model_config import ModelConfig
from core_grpc.models.sequence_config import SequenceConfig, StateConfig
from core_grpc.rpc.data_types import DATA_TYPES
from core_grpc.scheduler.live_sequences import Strategy
from core_grpc.types import Datatype, ModelSpec, TensorSpec
from protos.inference import model_config_pb2 as pb

_KINDS: Mapping[str, pb.ModelSequenceBatching.Control.Kind] = {
    "start": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START,
    "ready": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY,
    "end": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_END,
    "correlation_id": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID,
}


def encode_sequence_batching(config: ModelConfig, sequence: SequenceConfig, engine_spec: ModelSpec) -> pb.ModelSequenceBatching:
    """The message; ``engine_spec`` has the control inputs and states, the states with their batch dimension in front."""
    inputs = {item.name: item for item in engine_spec.inputs}
    delay_us = round(config.batching.max_queue_delay_s * 1e6)
    message = pb.ModelSequenceBatching(
        max_sequence_idle_microseconds=round(sequence.max_idle_s * 1e6),
        control_input=[
            pb.ModelSequenceBatching.ControlInput(name=name, control=[_control(kind, inputs[name])])
            for kind, name in sequence.inputs.items()
        ],
        state=_states(sequence.states, inputs, has_batch_dimension=engine_spec.max_batch_size > 0),
    )
    if sequence.strategy is Strategy.DIRECT:
        message.direct.max_queue_delay_microseconds = delay_us
        message.direct.minimum_slot_utilization = sequence.minimum_slot_utilization
    else:
        message.oldest.max_candidate_sequences = sequence.max_candidate_sequences
        message.oldest.preferred_batch_size.extend(config.batching.preferred_batch_sizes)
        message.oldest.max_queue_delay_microseconds = delay_us
    return message


def _control(kind: str, spec: TensorSpec) -> pb.ModelSequenceBatching.Control:
    """Triton knows flags of three datatypes; those of others are named by their datatype alone."""
    control = pb.ModelSequenceBatching.Control(kind=_KINDS[kind])
    if kind == "correlation_id":
        control.data_type = DATA_TYPES[spec.datatype]
    elif spec.datatype is Datatype.INT32:
        control.int32_false_true.extend((0, 1))
    elif spec.datatype is Datatype.FP32:
        control.fp32_false_true.extend((0, 1))
    elif spec.datatype is Datatype.BOOL:
        control.bool_false_true.extend((False, True))
    else:
        control.data_type = DATA_TYPES[spec.datatype]
    return control


def _states(
    states: Iterable[StateConfig], inputs: Mapping[str, TensorSpec], *, has_batch_dimension: bool
) -> Iterable[pb.ModelSequenceBatching.State]:
    for state in states:
        spec = inputs[state.input]
        dims = spec.shape[1:] if has_batch_dimension else spec.shape
        initial = pb.ModelSequenceBatching.InitialState(data_type=DATA_TYPES[spec.datatype], dims=dims, name=state.input)
        if state.initial:
            initial.data_file = state.initial
        else:
            initial.zero_data = True
        yield pb.ModelSequenceBatching.State(
            input_name=state.input, output_name=state.output, data_type=DATA_TYPES[spec.datatype], dims=dims, initial_state=[initial]
        )
