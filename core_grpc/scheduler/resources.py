"""The rate limiter: resources that executions of different models share, as Triton's ``rate_limiter``. Pure: no clock, no asyncio.

A resource is a name and a total, for each device or for all of them together (global). Methods return decisions. What it keeps true:

* of no resource is more taken than its total;
* a claimant holds all that an execution needs, or nothing: two never wait for each other's half;
* turns are fair: each costs the claimant its priority, and who has spent least comes first (start-time fair queueing), so one of priority
  2 gets half the turns of one of priority 1; who was idle does not save up turns;
* what is free is kept for the first in line until it has all it needs, so that small needs do not starve a large one; who needs nothing
  that somebody before it needs as well is not held up (Triton's queue stops at its first entry);
* nobody stays in line who could be granted, once ``next`` has said None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from core_grpc.errors import ModelLoadFailed
from core_grpc.settings import SettingsError

GLOBAL = "global"
"""Stands where a device's name would, for a resource that all devices share."""

_EACH = ""
"""In the configured totals: every device that has none of its own."""

ResourceKey: TypeAlias = tuple[str, str]
"""Device (or ``GLOBAL``) and name."""

_SETTING = "TENSORGATE_MODELS_RESOURCES"
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """What one execution takes of one resource."""

    name: str
    count: int = 1
    is_global: bool = False
    """One total for all devices together, instead of one for each."""


class Claimant:
    """Instances with the same needs, and the turns they had. Made by ``ResourceLimiter.join``."""

    __slots__ = ("finish", "needs", "priority", "tag")

    def __init__(self, needs: Mapping[ResourceKey, int], priority: int) -> None:
        self.needs = needs
        self.priority = priority
        self.tag = 0.0
        """The virtual start of the turn that is waited for."""
        self.finish = 0.0
        """The virtual end of the last turn."""


class ResourceLimiter:
    """See the module's text."""

    def __init__(self, totals: Mapping[ResourceKey, int] | None = None) -> None:
        """``totals`` are those that are configured (``totals_from_text``). A resource without one has the most that one claimant needs."""
        self._configured = totals or {}
        self._claimants: list[Claimant] = []
        self._totals: dict[ResourceKey, int] = {}
        self._taken: dict[ResourceKey, int] = {}
        self._line: dict[Claimant, None] = {}
        """In order of arrival."""
        self._virtual = 0.0

    def __repr__(self) -> str:
        used = ", ".join(f"{'/'.join(key)} {self._taken.get(key, 0)} of {total}" for key, total in self._totals.items())
        return f"<ResourceLimiter: {used or 'nothing'}, {len(self._line)} in line>"

    def join(self, device: str, needs: Sequence[ResourceNeed], priority: int = 1) -> Claimant:
        """A new claimant. Call ``next`` afterwards: a total may have grown.

        Raises:
            ModelLoadFailed: it needs more than is configured, or a resource is global here and elsewhere not.
        """
        for need in needs:
            self._check(device, need)
        claimant = Claimant({(GLOBAL if need.is_global else device, need.name): need.count for need in needs}, priority)
        self._claimants.append(claimant)
        self._count_totals()
        return claimant

    def leave(self, claimant: Claimant) -> None:
        """Forgets a claimant that holds nothing any more. Call ``next`` afterwards."""
        self._line.pop(claimant, None)
        self._claimants.remove(claimant)
        self._count_totals()

    @property
    def has_line(self) -> bool:
        """Whether somebody waits."""
        return bool(self._line)

    def ask(self, claimant: Claimant) -> bool:
        """Takes what an execution needs. False: it is in line now, and ``next`` will name it."""
        if claimant in self._line:
            return False
        claimant.tag = max(self._virtual, claimant.finish)
        self._line[claimant] = None
        if self._grantable() is not claimant:
            return False
        self._grant(claimant)
        return True

    def withdraw(self, claimant: Claimant) -> None:
        """Takes a claimant out of the line. Call ``next`` afterwards."""
        self._line.pop(claimant, None)

    def give_back(self, claimant: Claimant) -> None:
        """Gives back what one execution took. Call ``next`` afterwards."""
        for key, count in claimant.needs.items():
            self._taken[key] -= count

    def next(self) -> Claimant | None:
        """Grants the next one in line what it needs; None where nobody can be. To be called until then."""
        claimant = self._grantable() if self._line else None
        if claimant is not None:
            self._grant(claimant)
        return claimant

    def free(self, key: ResourceKey) -> int:
        """What nobody holds; below 0 where a total shrank since."""
        return self._totals.get(key, 0) - self._taken.get(key, 0)

    def _grantable(self) -> Claimant | None:
        kept: dict[ResourceKey, int] = {}
        for claimant in sorted(self._line, key=_tag):
            if all(self.free(key) - kept.get(key, 0) >= count for key, count in claimant.needs.items()):
                return claimant
            for key, count in claimant.needs.items():
                kept[key] = kept.get(key, 0) + count
        return None

    def _grant(self, claimant: Claimant) -> None:
        del self._line[claimant]
        for key, count in claimant.needs.items():
            self._taken[key] = self._taken.get(key, 0) + count
        self._virtual = max(self._virtual, claimant.tag)
        claimant.finish = claimant.tag + claimant.priority

    def _configured_total(self, key: ResourceKey) -> int | None:
        device, name = key
        if device == GLOBAL:
            return self._configured.get(key)
        return self._configured.get(key, self._configured.get((_EACH, name)))

    def _check(self, device: str, need: ResourceNeed) -> None:
        where = f"model.toml: [instances] resources: '{need.name}'"
        known = {*self._configured, *self._totals}
        others = {other != GLOBAL for other, name in known if name == need.name}
        if need.is_global in others:
            word, other = ("global", "for each device") if need.is_global else ("for each device", "global")
            raise ModelLoadFailed(f"{where} is {word} here and {other} in another model or in {_SETTING}")
        total = self._configured_total((GLOBAL if need.is_global else device, need.name))
        if total is not None and need.count > total:
            raise ModelLoadFailed(f"{where} count: wanted at most {total}, all that {_SETTING} gives, got {need.count}")

    def _count_totals(self) -> None:
        needed: dict[ResourceKey, int] = {}
        for claimant in self._claimants:
            for key, count in claimant.needs.items():
                needed[key] = max(needed.get(key, 0), count)
        self._totals = {key: most if (total := self._configured_total(key)) is None else total for key, most in needed.items()}


def _tag(claimant: Claimant) -> float:
    return claimant.tag


def totals_from_text(text: str) -> Mapping[ResourceKey, int]:
    """The totals of the setting: ``NAME:COUNT[:DEVICE]``, comma-separated. DEVICE is ``global``, ``cpu``, ``gpu:0`` or a GPU's number.

    Raises:
        SettingsError: it is something else.
    """
    totals: dict[ResourceKey, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition(":")
        count, _, device = rest.partition(":")
        if device.isascii() and device.isdigit():
            device = f"gpu:{device}"
        is_device = device in {_EACH, GLOBAL, "cpu"} or (device.startswith("gpu:") and device[4:].isascii() and device[4:].isdigit())
        if not name or not (count.isascii() and count.isdigit() and 1 <= int(count) <= _MOST) or not is_device:
            raise SettingsError(f"{_SETTING}: wanted NAME:COUNT or NAME:COUNT:DEVICE (global, cpu, gpu:0), got {item!r}")
        totals[device, name] = int(count)
    return totals
