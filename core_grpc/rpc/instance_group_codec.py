"""Instance groups as Triton's ``ModelInstanceGroup``, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from core_grpc.errors import ModelLoadFailed, quoted
from core_grpc.models.instance_groups import InstanceGroup, InstanceKind
from core_grpc.scheduler.resources import ResourceNeed
from protos.inference import model_config_pb2 as pb

_KINDS: Mapping[InstanceKind, int] = {
    "auto": pb.ModelInstanceGroup.KIND_AUTO,
    "cpu": pb.ModelInstanceGroup.KIND_CPU,
    "gpu": pb.ModelInstanceGroup.KIND_GPU,
}
_DECODED: Mapping[int, InstanceKind] = {number: kind for kind, number in _KINDS.items()}
_REFUSED = ("profile", "passive", "secondary_devices", "host_policy")
"""Fields that would change where or whether an instance runs, and that have no counterpart here."""


def encode_instance_group(group: InstanceGroup) -> pb.ModelInstanceGroup:
    """A group as a message."""
    message = pb.ModelInstanceGroup(
        name=group.name,
        kind=cast("pb.ModelInstanceGroup.Kind", _KINDS[group.kind]),
        count=group.count or 0,
        gpus=group.devices,
    )
    if group.resources or group.priority != 1:
        resources = [
            pb.ModelRateLimiter.Resource(name=need.name, count=need.count, **{"global": need.is_global}) for need in group.resources
        ]
        message.rate_limiter.CopyFrom(pb.ModelRateLimiter(resources=resources, priority=group.priority))
    return message


def _resource(need: ResourceNeed) -> pb.ModelRateLimiter.Resource:
    # A field named like a keyword of Python.
    return pb.ModelRateLimiter.Resource(name=need.name, count=need.count, **{"global": need.is_global})


def decode_instance_groups(messages: Sequence[pb.ModelInstanceGroup]) -> tuple[InstanceGroup, ...] | None:
    """The groups of a message; None where it has none. KIND_MODEL is KIND_AUTO here: a backend says itself which devices it can use.

    Raises:
        ModelLoadFailed: a field is out of range, or is not known here; the text begins with the field's name.
    """
    return tuple(map(_group, messages)) or None


def _group(message: pb.ModelInstanceGroup) -> InstanceGroup:
    for name in _REFUSED:
        if getattr(message, name):
            raise ModelLoadFailed(f"instance_group: {name} is not supported")
    if (least := min(message.count, *message.gpus, 0)) < 0:
        raise ModelLoadFailed(f"instance_group: wanted count and gpus of 0 or more, got {least}")
    resources = tuple(map(_need, message.rate_limiter.resources))
    kind, devices = _DECODED.get(message.kind, "auto"), tuple(message.gpus)
    return InstanceGroup(message.name, message.count or 1, kind, devices, (), resources, message.rate_limiter.priority or 1)


def _need(message: pb.ModelRateLimiter.Resource) -> ResourceNeed:
    if not message.name or not message.count:
        raise ModelLoadFailed(
            f"instance_group: rate_limiter: wanted resources with name and count, got {quoted(message.name)}, {message.count}"
        )
    return ResourceNeed(message.name, message.count, bool(getattr(message, "global")))
