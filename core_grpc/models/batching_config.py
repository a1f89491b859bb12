"""``[batching]`` and ``[queue]`` of model.toml: how requests are joined, and how they wait.

The names and meanings are those of Triton's ``dynamic_batching`` and ``ModelQueuePolicy``, where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.config_table import ConfigTable
from core_grpc.scheduler.policy import QueuePolicies, QueuePolicy, TimeoutAction
from core_grpc.scheduler.ragged import BatchInputKind

_MAX_ROWS = 10_000_000
_MAX_BYTES = 1 << 50
_MAX_MS = 86_400_000
_MAX_DELAY_MS = 60_000
_MAX_LEVELS = 32


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """``[batching]``."""

    max_queue_delay_s: float = 0.0
    """How long the oldest request may wait for others while an instance is free."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Ascending rows; a batch that has one of them does not wait for more. Empty: only a whole batch."""
    allowed_batch_sizes: tuple[int, ...] = ()
    """Ascending rows; a batch is padded up to the next of them, for engines that take only these. Empty: any."""
    preserve_ordering: bool = False
    """Whether answers leave in the order in which their requests arrived."""
    split_large_requests: bool = False
    """Whether a request above max_batch_size is run in parts instead of being refused."""
    match_parameters: tuple[str, ...] = ()
    """Request parameters that must be equal for requests to share a batch."""
    batch_inputs: Mapping[str, tuple[BatchInputKind, str]] = field(default_factory=dict)
    """Inputs that the server makes for each batch, by name: what each says, and about which ragged input."""
    scattered: Mapping[str, str] = field(default_factory=dict)
    """Outputs whose elements lie as those of a ragged input, and which."""


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """``[queue]``; ``None`` where the node's setting holds."""

    max_rows: int | None = None
    max_bytes: int | None = None
    policies: QueuePolicies = field(default_factory=QueuePolicies)


def batching_config_from_table(table: ConfigTable) -> BatchingConfig:
    """Reads ``[batching]``.

    Raises:
        ModelLoadFailed: it says something unknown or wrong.
    """
    config = BatchingConfig(
        max_queue_delay_s=table.number("max_queue_delay_ms", 0, 0, _MAX_DELAY_MS) / 1000,
        preferred_batch_sizes=table.sizes("preferred_batch_sizes"),
        allowed_batch_sizes=table.sizes("allowed_batch_sizes"),
        preserve_ordering=table.flag("preserve_ordering"),
        split_large_requests=table.flag("split_large_requests"),
        match_parameters=table.texts("match_parameters"),
        batch_inputs=_batch_inputs(table),
        scattered=_scattered(table),
    )
    table.finish()
    return config


def _batch_inputs(table: ConfigTable) -> Mapping[str, tuple[BatchInputKind, str]]:
    kinds = {kind.value: kind for kind in BatchInputKind}
    inputs: dict[str, tuple[BatchInputKind, str]] = {}
    for item in table.array("batch_input"):
        kind, source = item.choice("kind", kinds), item.text("source")
        inputs.update((target, (kind, source)) for target in item.texts("target"))
        item.finish()
    return inputs


def _scattered(table: ConfigTable) -> Mapping[str, str]:
    outputs: dict[str, str] = {}
    for item in table.array("batch_output"):
        item.choice("kind", {"scatter_with_input_shape": None})
        source = item.text("source")
        outputs.update((target, source) for target in item.texts("target"))
        item.finish()
    return outputs


def check_batching(config: BatchingConfig, max_batch_size: int) -> None:
    """Holds batch sizes against the model's, once that is known.

    Raises:
        ModelLoadFailed: they do not go together.
    """
    if not max_batch_size:
        for name in ("preferred_batch_sizes", "allowed_batch_sizes", "split_large_requests", "match_parameters"):
            if getattr(config, name):
                raise ModelLoadFailed(f"model.toml: [batching] {name}: wanted none, because the model has no batch dimension")
    for size in config.preferred_batch_sizes:
        if size > max_batch_size:
            raise ModelLoadFailed(
                f"model.toml: [batching] preferred_batch_sizes: wanted at most max_batch_size {max_batch_size}, got {size}"
            )
    if config.allowed_batch_sizes and config.allowed_batch_sizes[-1] != max_batch_size:
        raise ModelLoadFailed(
            f"model.toml: [batching] allowed_batch_sizes: wanted the largest to be max_batch_size {max_batch_size}, "
            f"got {config.allowed_batch_sizes[-1]}"
        )


def queue_config_from_table(table: ConfigTable) -> QueueConfig:
    """Reads ``[queue]``.

    Raises:
        ModelLoadFailed: it says something unknown or wrong.
    """
    levels = table.integer("priority_levels", 0, 0, _MAX_LEVELS)
    # Triton wants a default where there are levels; the middle is what nobody is surprised by.
    default_level = table.integer("default_priority", (levels + 1) // 2, min(levels, 1), levels)
    default = _policy(table, QueuePolicy())
    config = QueueConfig(
        max_rows=table.integer("max_rows", 1, 1, _MAX_ROWS) if "max_rows" in table else None,
        max_bytes=table.integer("max_bytes", 1, 1, _MAX_BYTES) if "max_bytes" in table else None,
        policies=QueuePolicies(levels, default_level, default, _levels(table.table("priority"), levels, default)),
    )
    table.finish()
    return config


def _levels(table: ConfigTable, levels: int, default: QueuePolicy) -> Mapping[int, QueuePolicy]:
    """``[queue.priority.N]``; what a level does not say is as in ``[queue]``."""
    policies: dict[int, QueuePolicy] = {}
    for name, of_level in table.tables():
        if not (name.isascii() and name.isdigit() and str(int(name)) == name and 1 <= int(name) <= levels):
            raise ModelLoadFailed(f"{of_level.where}: wanted a priority from 1 to priority_levels {levels}")
        policies[int(name)] = _policy(of_level, default)
        of_level.finish()
    return policies


def _policy(table: ConfigTable, default: QueuePolicy) -> QueuePolicy:
    actions = {action.value: action for action in TimeoutAction}
    return QueuePolicy(
        max_requests=table.integer("max_requests", default.max_requests, 0, _MAX_ROWS),
        timeout_s=table.number("timeout_ms", default.timeout_s * 1000, 0, _MAX_MS) / 1000,
        timeout_action=table.choice("timeout_action", actions) if "timeout_action" in table else default.timeout_action,
        allow_timeout_override=table.flag("allow_timeout_override", default.allow_timeout_override),
    )
