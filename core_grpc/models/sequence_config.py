"""``[sequence]`` of model.toml: how the sequences of a model are batched, which inputs the server fills in, and what it keeps for them.

::

    [sequence]
    strategy = "oldest"                 # or "direct"
    max_idle_ms = 1000                  # a sequence that is silent for longer has ended
    max_candidate_sequences = 1024      # oldest: sequences that an instance holds
    minimum_slot_utilization = 0.5      # direct: the part of an instance's slots that does not wait for more
    start = "START"                     # control inputs: see sequence_controls.py
    ready = "READY"
    end = "END"
    correlation_id = "CORRID"

    [[sequence.state]]                  # implicit state: see sequence_states.py
    input = "state"
    output = "stateN"
    initial = "state.npy"               # what a sequence begins with; zeros where there is none
    batch_axis = 1                      # which dimension is the batch; found by itself where only one is variable
    datatype = "FP32"                   # with shape: for backends that cannot read them from the model
    shape = [2, -1, 128]

Names and meanings are those of Triton's ``sequence_batching``, where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core_grpc.errors import ModelLoadFailed, quoted
from core_grpc.models.batching_config import BatchingConfig, QueueConfig
from core_grpc.models.config_table import ConfigTable
from core_grpc.scheduler.live_sequences import Strategy
from core_grpc.types import DATATYPES, Datatype

KINDS = ("start", "ready", "end", "correlation_id")
"""Of control inputs."""

_MAX_IDLE_MS = 86_400_000
_MAX_CANDIDATES = 65536
_MAX_AXIS = 31


@dataclass(frozen=True, slots=True)
class StateConfig:
    """``[[sequence.state]]``."""

    input: str
    output: str
    initial: str = ""
    """A file in the model's directory, ``.npy`` or raw little-endian values; empty for zeros (empty BYTES)."""
    batch_axis: int | None = None
    """None: the only variable dimension, or the first where that is one."""
    datatype: Datatype | None = None
    shape: tuple[int, ...] | None = None
    """As the model has it, with the batch dimension where there is one; -1 is variable."""


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """``[sequence]``."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    """Control inputs: name by kind."""
    max_idle_s: float = 1.0
    strategy: Strategy = Strategy.OLDEST
    max_candidate_sequences: int = 1024
    """For OLDEST."""
    minimum_slot_utilization: float = 0.0
    """For DIRECT; 0 for no waiting."""
    states: tuple[StateConfig, ...] = ()


def sequence_config_from_table(table: ConfigTable) -> SequenceConfig:
    """Reads ``[sequence]``.

    Raises:
        ModelLoadFailed: it says something unknown or wrong.
    """
    config = SequenceConfig(
        inputs={kind: name for kind in KINDS if (name := table.text(kind))},
        max_idle_s=table.number("max_idle_ms", 1000, 1, _MAX_IDLE_MS) / 1000,
        strategy=table.choice("strategy", {item.value: item for item in Strategy}) if "strategy" in table else Strategy.OLDEST,
        max_candidate_sequences=table.integer("max_candidate_sequences", 1024, 1, _MAX_CANDIDATES),
        minimum_slot_utilization=table.number("minimum_slot_utilization", 0, 0, 1),
        states=_states(table),
    )
    is_direct = config.strategy is Strategy.DIRECT
    _check_strategy(table, is_direct)
    _check_different("input", [*config.inputs.values(), *(state.input for state in config.states)])
    _check_different("output", [state.output for state in config.states])
    table.finish()
    return config


def check_sequence_batching(batching: BatchingConfig, queue: QueueConfig) -> None:
    """Refuses what ``[batching]`` and ``[queue]`` offer and models of sequences do not: their requests run in order, one row each.

    Raises:
        ModelLoadFailed: they ask for it.
    """
    kinds = (
        ("[batching] preserve_ordering", batching.preserve_ordering, "false: each sequence is in order anyhow"),
        ("[batching] split_large_requests", batching.split_large_requests, "false: a request is one row"),
        ("[queue] priority_levels", queue.policies.priority_levels, "0: the requests of a sequence run in their order"),
        ("[queue] timeout_action", queue.policies.delays, "reject: the requests of a sequence run in their order"),
    )
    for key, is_set, wanted in kinds:
        if is_set:
            raise ModelLoadFailed(f"model.toml: {key}: for a model with [sequence] wanted {wanted}")


def _states(table: ConfigTable) -> tuple[StateConfig, ...]:
    value = table.take("state", [])
    if not isinstance(value, list):
        raise table.failure("state", "a list of tables, [[sequence.state]]")
    where = table.where.removesuffix("]")
    return tuple(_state(ConfigTable(f"{where}.state] {index + 1}:", item)) for index, item in enumerate(value))


def _state(table: ConfigTable) -> StateConfig:
    config = StateConfig(
        input=table.text("input"),
        output=table.text("output"),
        initial=table.text("initial"),
        batch_axis=table.integer("batch_axis", 0, 0, _MAX_AXIS) if "batch_axis" in table else None,
        datatype=table.choice("datatype", DATATYPES) if "datatype" in table else None,
        shape=table.shape("shape"),
    )
    table.finish()
    for key, name in (("input", config.input), ("output", config.output)):
        if not name:
            raise ModelLoadFailed(f"{table.where} {key}: wanted the name of one of the model's {key}s, got nothing")
    if (config.datatype is None) != (config.shape is None):
        raise ModelLoadFailed(f"{table.where} datatype and shape go together, got one of them")
    return config


def _check_strategy(table: ConfigTable, is_direct: bool) -> None:
    if is_direct and "max_candidate_sequences" in table:
        raise table.failure("max_candidate_sequences", 'nothing with strategy = "direct", whose slots are the rows of a batch')
    if not is_direct and "minimum_slot_utilization" in table:
        raise table.failure("minimum_slot_utilization", 'nothing without strategy = "direct"')


def _check_different(role: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ModelLoadFailed(f"model.toml: [sequence]: wanted a different {role} for each purpose, got {quoted(name)} twice")
