"""``[instances]`` and ``[[instances]]`` of model.toml: how many copies of a model run, where, and what they share with others.

Plain values, as Triton's ``instance_group`` and ``rate_limiter`` have them; ``placement.py`` decides what they come to on a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.config_table import ConfigTable, shown
from core_grpc.scheduler.resources import ResourceNeed

InstanceKind: TypeAlias = Literal["auto", "cpu", "gpu"]

_KINDS: Mapping[str, InstanceKind] = {"auto": "auto", "cpu": "cpu", "gpu": "gpu"}
_MOST = 1024
_HIGHEST_ID = 65_535
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Instances that are alike: one table ``[instances]``, or one of several ``[[instances]]``."""

    name: str = ""
    """Empty for one made from the model's name and the group's place."""
    count: int | None = 1
    """Instances on each device; None for ``"auto"``, whose rule is ``placement.auto_count``."""
    kind: InstanceKind = "auto"
    """``auto`` is gpu where the backend can use one here, cpu elsewhere."""
    devices: tuple[int, ...] = ()
    """Which GPUs, by number; empty for every one that there is."""
    cores: tuple[int, ...] = ()
    """The logical processors that the instances' threads may run on; empty for all."""
    resources: tuple[ResourceNeed, ...] = ()
    """What each execution takes of resources that models share."""
    priority: int = 1
    """For these resources: an instance of priority 2 gets half the turns of one of priority 1."""


def instance_groups(top: ConfigTable) -> tuple[InstanceGroup, ...]:
    """The groups of a model.toml; one of one instance where it says nothing.

    Raises:
        ModelLoadFailed: an unknown key, a wrong type or a value out of range.
    """
    value = top.take("instances", {})
    if not isinstance(value, list):
        return (_group(top.table("instances")),)
    if not value:
        raise top.failure("instances", "a table, or at least one [[instances]]")
    return tuple(_group(ConfigTable(f"{top.where}: [[instances]] {index}", table)) for index, table in enumerate(value))


def _group(table: ConfigTable) -> InstanceGroup:
    group = InstanceGroup(
        name=table.text("name"),
        count=None if table.take("count") == "auto" else table.integer("count", 1, 1, _MOST),
        kind=table.choice("kind", _KINDS) if "kind" in table else "auto",
        devices=_numbers(table, "devices", "a list of GPU numbers, such as [0, 1]"),
        cores=_cores(table),
        resources=_resources(table),
        priority=table.integer("priority", 1, 1, _MOST),
    )
    table.finish()
    return group


def _numbers(table: ConfigTable, key: str, wanted: str) -> tuple[int, ...]:
    value = table.take(key, [])
    if not isinstance(value, list) or not all(_is_id(item) for item in value) or len(set(value)) != len(value):
        raise table.failure(key, f"{wanted}, each once")
    return tuple(value)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST_ID


def _cores(table: ConfigTable) -> tuple[int, ...]:
    wanted = 'a list of processor numbers such as [0, 1], or a text such as "0-3,8"'
    value = table.take("cores", [])
    if not isinstance(value, str):
        return _numbers(table, "cores", wanted)
    cores: list[int] = []
    for part in value.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= _HIGHEST_ID:
            raise table.failure("cores", wanted)
        cores.extend(range(first, last + 1))
    return tuple(sorted(set(cores)))


def _resources(table: ConfigTable) -> tuple[ResourceNeed, ...]:
    value = table.take("resources", [])
    if not isinstance(value, list):
        raise table.failure("resources", 'a list of tables such as { name = "R1", count = 1 }')
    needs = tuple(_need(f"{table.where} resources", item) for item in value)
    if len({need.name for need in needs}) != len(needs):
        raise ModelLoadFailed(f"{table.where} resources: wanted each name once, got {shown([need.name for need in needs])}")
    return needs


def _need(where: str, value: Any) -> ResourceNeed:
    table = ConfigTable(where, value)
    name, is_global = table.text("name"), table.take("global", default=False)
    if not _RESOURCE_NAME.fullmatch(name):
        raise ModelLoadFailed(f"{where} name: wanted letters, digits, '_', '-' and '.', got {shown(name)}")
    if not isinstance(is_global, bool):
        raise table.failure("global", "true or false")
    need = ResourceNeed(name, table.integer("count", 1, 1, 1_000_000), is_global)
    table.finish()
    return need
