"""Decides which loaded models must go so that a budget holds. Pure: it is given what is loaded and the time, and returns decisions.

The budget is a number of model versions, and bytes on each device; models that are being loaded and those that are on their way out count.
The least recently used go first.

Invariants (tests/property/test_residency.py):

* who must go is idle and not pinned;
* once they have gone, the budget holds with what is wanted, where the verdict says that this is enough;
* it is only said not to be enough when it would not hold with all gone that may go;
* nobody goes while the budget holds, and nobody more than is enough;
* of two models that take room on the same devices, the one that was used last does not go before the other;
* a model whose load failed is not tried again before its pause is over; pauses double from one failure to the next, up to a limit, and
  begin anew after a success.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Resident(Generic[Key]):
    """A model version that takes room."""

    key: Key
    nbytes: Mapping[str, int]
    """By device."""
    last_used: float = 0.0
    """Monotonic seconds."""
    is_idle: bool = False
    """Whether it may go now: nothing is in work or waits, and nobody loads or unloads it."""
    is_pinned: bool = False


class Verdict(NamedTuple, Generic[Key]):
    """Who must go, and what comes of it."""

    going: list[Key]
    """The least recently used first."""
    is_enough: bool
    """Whether the budget holds once they have gone."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be loaded at once; 0 is no limit."""

    max_models: int = 0
    max_bytes: int = 0
    """On each device."""

    def __bool__(self) -> bool:
        return bool(self.max_models or self.max_bytes)

    def who_must_go(self, residents: Sequence[Resident[Key]], wanted: Mapping[str, int] | None = None) -> Verdict[Key]:
        """Whose going makes the budget hold, or comes nearest to it.

        Args:
            residents: everything that takes room.
            wanted: bytes by device of one more model that is to be loaded; None where none is.
        """
        taken = _Room(self, residents, wanted)
        going: list[Key] = []
        for resident in sorted(residents, key=lambda item: item.last_used):
            if resident.is_idle and not resident.is_pinned and taken.is_relieved_by(resident):
                taken.without(resident)
                going.append(resident.key)
        return Verdict(going, not taken.is_exceeded)

    def can_ever_hold(self, residents: Sequence[Resident[Key]], wanted: Mapping[str, int]) -> bool:
        """Whether there would be room for one more model if all that is not pinned were gone."""
        return not _Room(self, [resident for resident in residents if resident.is_pinned], wanted).is_exceeded


class _Room(Generic[Key]):
    """How much of the budget is taken."""

    def __init__(self, budget: Budget, residents: Sequence[Resident[Key]], wanted: Mapping[str, int] | None) -> None:
        self._budget = budget
        self._models = len(residents) + (wanted is not None)
        self._nbytes: dict[str, int] = dict(wanted or {})
        for resident in residents:
            for device, nbytes in resident.nbytes.items():
                self._nbytes[device] = self._nbytes.get(device, 0) + nbytes

    @property
    def is_exceeded(self) -> bool:
        return self._has_too_many_models or any(map(self._is_full, self._nbytes))

    def is_relieved_by(self, resident: Resident[Key]) -> bool:
        return self._has_too_many_models or any(nbytes and self._is_full(device) for device, nbytes in resident.nbytes.items())

    def without(self, resident: Resident[Key]) -> None:
        self._models -= 1
        for device, nbytes in resident.nbytes.items():
            self._nbytes[device] -= nbytes

    @property
    def _has_too_many_models(self) -> bool:
        return 0 < self._budget.max_models < self._models

    def _is_full(self, device: str) -> bool:
        return 0 < self._budget.max_bytes < self._nbytes[device]


@dataclass(slots=True)
class BackOff(Generic[Key]):
    """When models whose load failed may be tried again."""

    _failures: dict[Key, tuple[int, float]] = field(default_factory=dict)
    """How often in a row, and until when the pause lasts."""

    def failed(self, key: Key, now: float) -> float:
        """Begins the pause of a model whose load just failed; its length in seconds."""
        count = self._failures.get(key, (0, 0.0))[0] + 1
        pause = min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 30), LONGEST_PAUSE_S)
        self._failures[key] = (count, now + pause)
        return pause

    def may_try(self, key: Key, now: float) -> bool:
        """Whether no pause lasts."""
        return key not in self._failures or now >= self._failures[key][1]

    def succeeded(self, key: Key) -> None:
        """Forgets the failures of a model that was loaded, or that is gone."""
        self._failures.pop(key, None)
