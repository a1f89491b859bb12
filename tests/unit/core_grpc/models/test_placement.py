"""Where instances go, on machines that the tests describe."""

from __future__ import annotations

import pytest

from core_grpc.backends.base import EngineTraits, Gpus, Placement
from core_grpc.errors import ModelLoadFailed
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.placement import Machine, auto_count, default_slots, placed_instances, resolved_groups

SHARED, COPIES = EngineTraits(shares_copy=True), EngineTraits()
NO_GPU = Machine((0, 1, 2, 3), can_pin=True, gpus=Gpus(0, "this machine has no GPU"))
TWO_GPUS = NO_GPU._replace(gpus=Gpus(2))


def resolved(*groups: InstanceGroup, machine: Machine = NO_GPU, threads: int = 0) -> tuple[InstanceGroup, ...]:
    return resolved_groups(groups, "m", SHARED, machine, threads)


def places(*groups: InstanceGroup, machine: Machine = NO_GPU) -> list[tuple[str, int]]:
    return [(placed.placement.device, placed.group) for placed in placed_instances(resolved(*groups, machine=machine))]


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolved(InstanceGroup()) == (InstanceGroup("m_0", 1, "cpu"),)
    assert resolved(InstanceGroup(), machine=TWO_GPUS) == (InstanceGroup("m_0", 1, "gpu", (0, 1)),)
    assert resolved(InstanceGroup(devices=(1,))) == (InstanceGroup("m_0", 1, "cpu"),)
    assert resolved(InstanceGroup(devices=(1,)), machine=TWO_GPUS) == (InstanceGroup("m_0", 1, "gpu", (1,)),)
    assert resolved(InstanceGroup(kind="cpu"), machine=TWO_GPUS) == (InstanceGroup("m_0", 1, "cpu"),)


def test_the_count_is_for_each_device_of_each_group() -> None:
    on_cpu, on_gpus = InstanceGroup(kind="cpu"), InstanceGroup(count=2, kind="gpu")
    expected = [("cpu", 0), ("gpu:0", 1), ("gpu:0", 1), ("gpu:1", 1), ("gpu:1", 1)]
    assert places(on_cpu, on_gpus, machine=TWO_GPUS) == expected
    assert places(InstanceGroup(count=3)) == [("cpu", 0)] * 3


def test_cores_go_with_the_instances() -> None:
    (group,) = resolved(InstanceGroup(name="pinned", cores=(1, 3)))
    assert (group.name, placed_instances([group])[0].placement) == ("pinned", Placement("cpu", 0, (1, 3)))


@pytest.mark.parametrize(
    ("machine", "group", "reason"),
    [
        (NO_GPU, InstanceGroup(kind="gpu"), r'\[instances\] kind: wanted "cpu" or "auto", because this machine has no GPU, got "gpu"'),
        (TWO_GPUS, InstanceGroup(devices=(0, 7)), r"\[instances\] devices: wanted some of what this machine has, GPUs 0 to 1, got 7"),
        (
            NO_GPU._replace(gpus=Gpus(1)),
            InstanceGroup(kind="gpu", devices=(1,)),
            r"\[instances\] devices: wanted some of what this machine has, GPU 0, got 1",
        ),
        (TWO_GPUS, InstanceGroup(kind="cpu", devices=(0,)), r'\[instances\] devices: wanted none for kind = "cpu", got \[0\]'),
        (NO_GPU, InstanceGroup(cores=(0, 9)), r"\[instances\] cores: wanted some of those that this process may use, 0, 1, 2, 3, got 9"),
        (NO_GPU._replace(can_pin=False), InstanceGroup(cores=(0,)), r"\[instances\] cores: wanted none, because this system cannot bind"),
    ],
)
def test_what_this_machine_does_not_have(machine: Machine, group: InstanceGroup, reason: str) -> None:
    with pytest.raises(ModelLoadFailed, match=reason):
        resolved(group, machine=machine)


@pytest.mark.parametrize(
    ("traits", "on_gpu", "cores", "threads", "expected"),
    [
        (SHARED, False, 8, 0, 1),
        (SHARED, False, 8, 1, 8),
        (SHARED, False, 8, 3, 2),
        (SHARED, False, 2, 16, 1),
        (SHARED, True, 8, 1, 1),
        (COPIES, False, 8, 1, 4),
        (COPIES, False, 64, 1, 4),
        (COPIES, False, 3, 1, 1),
        (COPIES, False, 1, 1, 1),
        (COPIES, True, 64, 1, 1),
    ],
)
def test_the_rule_of_auto(traits: EngineTraits, on_gpu: bool, cores: int, threads: int, expected: int) -> None:
    assert auto_count(traits, on_gpu=on_gpu, cores=cores, threads=threads) == expected


def test_auto_counts_the_cores_that_the_group_has() -> None:
    assert resolved(InstanceGroup(count=None), threads=1)[0].count == 4
    assert resolved(InstanceGroup(count=None, cores=(2, 3)), threads=1)[0].count == 2


@pytest.mark.parametrize(
    ("device", "cores", "threads", "expected"), [("cpu", 8, 0, 8), ("cpu", 8, 1, 8), ("cpu", 8, 3, 2), ("cpu", 2, 4, 1), ("gpu:1", 8, 1, 2)]
)
def test_the_default_slots(device: str, cores: int, threads: int, expected: int) -> None:
    assert default_slots(device, cores=cores, threads=threads) == expected
