"""Inputs that the server fills in from a request's sequence parameters, as Triton's control inputs.

======================  ==========================================================================
``[sequence]``
======================  ==========================================================================
``start``               1 on the first request of a sequence
``ready``               1 on every request; 0 where a row of a direct batch belongs to no request
``end``                 1 on the last request
``correlation_id``      the sequence's id: a number, or BYTES
======================  ==========================================================================

Each names an input of the model and may be left out. Callers do not see these inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core_grpc.errors import InvalidArgument, ModelLoadFailed, quoted
from core_grpc.models.sequence_config import SequenceConfig
from core_grpc.scheduler.sequences import SequenceCall, SequenceId
from core_grpc.types import Array, Datatype, ParameterValue, TensorSpec

_NO_CALL = SequenceCall(0, is_start=False, is_end=False)
_WHOLE = SequenceCall(1, is_start=True, is_end=True)


class SequenceControls:
    """The control inputs of one model."""

    def __init__(self, config: SequenceConfig, inputs: Sequence[TensorSpec], *, has_batch_dimension: bool) -> None:
        """``inputs`` are the model's own.

        Raises:
            ModelLoadFailed: a control input is not one of the model's, or cannot hold its value.
        """
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

    @property
    def tells_empty_rows(self) -> bool:
        """Whether the model is told which rows of a batch belong to no request."""
        return "ready" in self._controls

    def filled(self, call: SequenceCall, rows: int = 1) -> dict[str, Array]:
        """The control inputs of a request.

        Raises:
            InvalidArgument: the model's input cannot hold the id.
        """
        return self._filled(call, rows, is_ready=True)

    def empty(self) -> dict[str, Array]:
        """Those of a row that belongs to no request."""
        return self._filled(_NO_CALL, 1, is_ready=False)

    def _filled(self, call: SequenceCall, rows: int, *, is_ready: bool) -> dict[str, Array]:
        sequence_id = "" if not is_ready and self._takes_texts else call.sequence_id
        values: Mapping[str, SequenceId] = {"start": call.is_start, "ready": is_ready, "end": call.is_end, "correlation_id": sequence_id}
        return {item.name: self._array(item, values[kind], rows) for kind, item in self._controls.items()}

    @property
    def _takes_texts(self) -> bool:
        item = self._controls.get("correlation_id")
        return item is not None and item.datatype is Datatype.BYTES

    def of_one_request(self, rows: int) -> Mapping[str, Array]:
        """Those of a sequence that one request begins and ends."""
        return self.filled(_WHOLE, rows)

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


def sequence_call(parameters: Mapping[str, ParameterValue]) -> SequenceCall:
    """What a request's parameters say about its sequence; id 0 where they say nothing.

    Raises:
        InvalidArgument: the id is neither a number nor a text.
    """
    sequence_id = parameters.get("sequence_id", 0)
    if not isinstance(sequence_id, int | str):
        raise InvalidArgument("parameter 'sequence_id': wanted a non-negative integer or a string")
    return SequenceCall(sequence_id, parameters.get("sequence_start") is True, parameters.get("sequence_end") is True)
