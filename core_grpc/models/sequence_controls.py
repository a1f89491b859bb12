"""``[sequence]`` of model.toml: inputs that the server fills in from a request's sequence parameters, as Triton's control inputs.

::

    [sequence]
    max_idle_ms = 1000          # a sequence that is silent for longer has ended
    start = "START"             # 1 on the first request of a sequence
    ready = "READY"             # 1 on every request
    end = "END"                 # 1 on the last request
    correlation_id = "CORRID"   # the sequence's id: a number, or BYTES

Each names an input of the model and may be left out. Callers do not see these inputs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core_grpc.errors import InvalidArgument, ModelLoadFailed, quoted
from core_grpc.scheduler.sequences import SequenceId, SequenceTracker
from core_grpc.types import Array, Datatype, InferRequest, TensorSpec

KINDS = ("start", "ready", "end", "correlation_id")


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """``[sequence]``."""

    inputs: Mapping[str, str]
    """Input name by kind."""
    max_idle_s: float


class SequenceControls:
    """The control inputs of one model, and its sequences."""

    def __init__(self, model: str, config: SequenceConfig, inputs: Sequence[TensorSpec], *, has_batch_dimension: bool) -> None:
        """``inputs`` are the model's own.

        Raises:
            ModelLoadFailed: a control input is not one of the model's, or cannot hold its value.
        """
        self._tracker = SequenceTracker(model, config.max_idle_s)
        self._has_batch_dimension = has_batch_dimension
        specs = {item.name: item for item in inputs}
        self._controls: dict[str, TensorSpec] = {}
        for kind, name in config.inputs.items():
            if name not in specs:
                raise ModelLoadFailed(f"model.toml: [sequence] {kind}: wanted one of {', '.join(specs)}, got {quoted(name)}")
            if specs[name].datatype is Datatype.BYTES and kind != "correlation_id":
                raise ModelLoadFailed(f"model.toml: [sequence] {kind}: wanted an input of numbers or BOOL, {quoted(name)} is BYTES")
            self._controls[kind] = specs[name]

    @property
    def names(self) -> frozenset[str]:
        """Inputs that callers do not give."""
        return frozenset(item.name for item in self._controls.values())

    def added(self, inputs: Mapping[str, Array], rows: int, request: InferRequest) -> Mapping[str, Array]:
        """The inputs with the controls.

        Raises:
            InvalidArgument: the request's sequence parameters are missing or do not fit what came before.
            QueueFull: too many sequences are going on.
        """
        parameters = request.parameters
        sequence_id = parameters.get("sequence_id", 0)
        if not isinstance(sequence_id, int | str):
            raise InvalidArgument("parameter 'sequence_id': wanted a non-negative integer or a string")
        is_start, is_end = parameters.get("sequence_start") is True, parameters.get("sequence_end") is True
        values: Mapping[str, SequenceId] = {"start": is_start, "ready": True, "end": is_end, "correlation_id": sequence_id}
        controls = {item.name: self._array(item, values[kind], rows) for kind, item in self._controls.items()}
        self._tracker.request(sequence_id, is_start=is_start, is_end=is_end, now=time.monotonic())
        return {**inputs, **controls}

    def of_one_request(self, rows: int) -> Mapping[str, Array]:
        """The control inputs of a sequence that one request begins and ends."""
        return {item.name: self._array(item, 1, rows) for item in self._controls.values()}

    def _array(self, item: TensorSpec, value: SequenceId, rows: int) -> Array:
        shape = [1 if size == -1 else size for size in item.shape]
        if self._has_batch_dimension:
            shape[0] = rows
        if item.datatype is Datatype.BYTES:
            return np.full(shape, str(value).encode(), dtype=object)
        if isinstance(value, str):
            raise InvalidArgument(f"parameter 'sequence_id': this model wants a number, got {quoted(value)}")
        try:
            return np.full(shape, value, dtype=item.datatype.dtype)
        except OverflowError:
            raise InvalidArgument(f"parameter 'sequence_id': {value} does not fit {item.datatype}") from None
