"""What a model's instance groups come to on this machine: which instances, on which devices. Pure: the machine is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from core_grpc.backends.base import EngineTraits, Gpus, Placement
from core_grpc.errors import ModelLoadFailed
from core_grpc.models.instance_groups import InstanceGroup

_MOST_COPIES = 4
"""``count = "auto"`` makes at most as many instances, where each has a copy of the model."""
_GPU_SLOTS = 2


class Machine(NamedTuple):
    """What a backend finds here."""

    cores: tuple[int, ...]
    """The logical processors that this process may use."""
    can_pin: bool
    """Whether threads may be bound to some of them."""
    gpus: Gpus
    """Those that the backend can use."""


class PlacedInstance(NamedTuple):
    """One instance."""

    placement: Placement
    group: int
    """Place of its group in the configuration."""


def resolved_groups(
    groups: Sequence[InstanceGroup], model: str, traits: EngineTraits, machine: Machine, threads: int
) -> tuple[InstanceGroup, ...]:
    """The groups with names, and with kind, devices and count as they are here instead of ``auto``.

    Args:
        model: its name, for the groups' names.
        traits: of the model's backend.
        threads: that one execution may use; 0 for every core.

    Raises:
        ModelLoadFailed: a group names a device or core that there is not, or devices for the CPU.
    """
    return tuple(
        _resolved(replace(group, name=group.name or f"{model}_{index}"), traits, machine, threads) for index, group in enumerate(groups)
    )


def placed_instances(groups: Sequence[InstanceGroup]) -> list[PlacedInstance]:
    """The instances of resolved groups, in order: group by group, device by device."""
    return [
        PlacedInstance(placement, index)
        for index, group in enumerate(groups)
        for placement in _placements(group)
        for _ in range(group.count or 1)
    ]


def instance_count(groups: Sequence[InstanceGroup]) -> int:
    """Instances of resolved groups."""
    return len(placed_instances(groups))


def auto_count(traits: EngineTraits, *, on_gpu: bool, cores: int, threads: int) -> int:
    """The rule of ``count = "auto"``, for one device.

    1 on a GPU, where an instance overlaps batches by itself. On the CPU, where instances share one copy of the model and the engine runs
    several at once: as many as fill the cores (cores / threads of one execution). Where each has a copy of its own: one for every second
    core, at most 4.
    """
    if on_gpu:
        return 1
    if traits.shares_copy:
        return max(cores // (threads or cores), 1)
    return min(max(cores // 2, 1), _MOST_COPIES)


def default_slots(device: str, *, cores: int, threads: int) -> int:
    """Executions that run at once on a device whose setting says nothing: 2 on a GPU; on the CPU as many as have a core for each of their
    threads, where 0 threads (one operator may take every core) count as 1, because most models cannot use what they may."""
    return _GPU_SLOTS if device != "cpu" else max(cores // max(threads, 1), 1)


def _placements(group: InstanceGroup) -> list[Placement]:
    if group.kind != "gpu":
        return [Placement(cores=group.cores)]
    return [Placement("gpu", device, group.cores) for device in group.devices]


def _resolved(group: InstanceGroup, traits: EngineTraits, machine: Machine, threads: int) -> InstanceGroup:
    _check_cores(group, machine)
    on_gpu = group.kind == "gpu" or (group.kind == "auto" and machine.gpus.count > 0)
    if group.kind == "cpu" and group.devices:
        raise ModelLoadFailed(f'model.toml: [instances] devices: wanted none for kind = "cpu", got {list(group.devices)}')
    count = group.count
    if count is None:
        count = auto_count(traits, on_gpu=on_gpu, cores=len(group.cores or machine.cores), threads=threads)
    return replace(group, kind="gpu" if on_gpu else "cpu", devices=_devices(group, machine.gpus) if on_gpu else (), count=count)


def _devices(group: InstanceGroup, gpus: Gpus) -> tuple[int, ...]:
    if not gpus.count:
        raise ModelLoadFailed(f'model.toml: [instances] kind: wanted "cpu" or "auto", because {gpus.absence}, got "gpu"')
    missing = [device for device in group.devices if device >= gpus.count]
    if missing:
        there = "GPU 0" if gpus.count == 1 else f"GPUs 0 to {gpus.count - 1}"
        raise ModelLoadFailed(f"model.toml: [instances] devices: wanted some of what this machine has, {there}, got {missing[0]}")
    return group.devices or tuple(range(gpus.count))


def _check_cores(group: InstanceGroup, machine: Machine) -> None:
    if group.cores and not machine.can_pin:
        raise ModelLoadFailed("model.toml: [instances] cores: wanted none, because this system cannot bind threads to processors")
    missing = [core for core in group.cores if core not in machine.cores]
    if missing:
        there = ", ".join(map(str, machine.cores))
        raise ModelLoadFailed(f"model.toml: [instances] cores: wanted some of those that this process may use, {there}, got {missing[0]}")
