"""What becomes of each field of a ``config.pbtxt``: a row for every path that this server treats differently from the path above it.

The test of these rows walks over all fields of the message, so that none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Treatment(Enum):
    """Of a field that is set."""

    READ = "read"
    """Means here what it means in Triton."""
    FROM_MODEL = "read from the model"
    """The model's own file says it, and is believed; or it says what would be so without it."""
    NO_EFFECT = "no effect"
    """Changes nothing here, nor any answer; said in the log, the index and the model's configuration."""
    REFUSED = "refused"
    """Without it answers would be others, so the model is not served."""


_READ, _FROM_MODEL, _NO_EFFECT, _REFUSED = Treatment.READ, Treatment.FROM_MODEL, Treatment.NO_EFFECT, Treatment.REFUSED

FIELDS: Mapping[str, Treatment] = {
    "name": _READ,
    "platform": _READ,
    "backend": _READ,
    "version_policy": _READ,
    "max_batch_size": _READ,
    "input": _READ,
    "input.is_shape_tensor": _REFUSED,
    "input.allow_ragged_batch": _READ,
    "input.is_non_linear_format_io": _REFUSED,
    "output": _READ,
    "output.is_shape_tensor": _REFUSED,
    "output.is_non_linear_format_io": _REFUSED,
    "batch_input": _READ,
    "batch_input.data_type": _FROM_MODEL,
    "batch_output": _READ,
    "instance_group": _READ,
    "instance_group.profile": _NO_EFFECT,
    "instance_group.passive": _REFUSED,
    "instance_group.secondary_devices": _NO_EFFECT,
    "instance_group.host_policy": _NO_EFFECT,
    "default_model_filename": _READ,
    "cc_model_filenames": _NO_EFFECT,
    "metric_tags": _NO_EFFECT,
    "dynamic_batching": _READ,
    "sequence_batching": _READ,
    "sequence_batching.control_input.control.data_type": _FROM_MODEL,
    "sequence_batching.oldest.preserve_ordering": _FROM_MODEL,
    "sequence_batching.state.data_type": _FROM_MODEL,
    "sequence_batching.state.dims": _FROM_MODEL,
    "sequence_batching.state.initial_state": _FROM_MODEL,
    "sequence_batching.state.initial_state.data_file": _READ,
    "sequence_batching.state.use_same_buffer_for_input_output": _NO_EFFECT,
    "sequence_batching.state.use_growable_memory": _NO_EFFECT,
    "sequence_batching.iterative_sequence": _REFUSED,
    "ensemble_scheduling": _READ,
    "ensemble_scheduling.step.model_namespace": _REFUSED,
    "ensemble_scheduling.max_inflight_requests": _NO_EFFECT,
    "optimization": _NO_EFFECT,
    "parameters": _READ,
    "model_warmup": _READ,
    "model_warmup.inputs.zero_data": _FROM_MODEL,
    "model_operations": _REFUSED,
    "model_transaction_policy": _READ,
    "model_repository_agents": _REFUSED,
    "response_cache": _READ,
    "runtime": _REFUSED,
    "model_metrics": _NO_EFFECT,
}
"""By path from the top of ModelConfig; a path without a row is treated as the longest one above it that has a row."""


def treatment(path: str) -> Treatment:
    """Of a field, by its path.

    Raises:
        KeyError: neither it nor anything above it has a row.
    """
    above = path
    while above not in FIELDS and "." in above:
        above = above.rpartition(".")[0]
    return FIELDS[above]
