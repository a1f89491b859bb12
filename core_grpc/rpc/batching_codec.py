"""``[batching]`` and ``[queue]`` of model.toml as Triton's ``ModelDynamicBatching``."""

from __future__ import annotations

from core_grpc.models.model_config import ModelConfig
from core_grpc.scheduler.policy import QueuePolicy, TimeoutAction
from core_grpc.types import ModelSpec
from protos.inference import model_config_pb2 as pb


def encode_dynamic_batching(config: ModelConfig, spec: ModelSpec) -> pb.ModelDynamicBatching:
    """The message; what Triton has no field for is left out."""
    batching, policies = config.batching, config.queue.policies
    message = pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_sizes or [spec.max_batch_size],
        max_queue_delay_microseconds=_microseconds(batching.max_queue_delay_s),
        preserve_ordering=batching.preserve_ordering,
        priority_levels=policies.priority_levels,
        default_priority_level=policies.default_priority_level,
        priority_queue_policy={level: _queue_policy(policy) for level, policy in policies.by_level.items()},
    )
    if policies.default != QueuePolicy():
        message.default_queue_policy.CopyFrom(_queue_policy(policies.default))
    return message


def _queue_policy(policy: QueuePolicy) -> pb.ModelQueuePolicy:
    return pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.DELAY if policy.timeout_action is TimeoutAction.DELAY else pb.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=_microseconds(policy.timeout_s),
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_requests,
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
