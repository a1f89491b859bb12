"""Decides which models of a polled repository have changed and may be loaded. Pure: it is given the time and what was found.

A model's files have a fingerprint. A copy that is still being written changes it at every look, so a change is acted on once the
same fingerprint was found by two looks that are ``settle_s`` or more apart, with no other one between them. What was acted on is not
acted on again until the fingerprint changes, whether or not the load succeeded.

Invariants (tests/property/test_change_detection.py):

* a model is handed out only for a fingerprint that looks have found without a break for ``settle_s``, and in two looks at least;
* it is never handed out twice in a row for the same fingerprint;
* when nothing changes any more and looks go on, everything that differs from what was handed out is handed out;
* a model that is gone is handed out as removed, exactly once, and only if it was known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Fingerprint: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do after a look, by name, in order."""

    changed: tuple[str, ...] = ()
    """New models and those whose files are others."""
    removed: tuple[str, ...] = ()


class ChangeDetector:
    """See the module's text."""

    def __init__(self, settle_s: float, known: Mapping[str, Fingerprint]) -> None:
        """``known`` is what is loaded already."""
        self._settle_s = settle_s
        self._known: dict[str, Fingerprint] = dict(known)
        """What was handed out last."""
        self._pending: dict[str, tuple[Fingerprint | None, float]] = {}
        """What was found instead, None for nothing, and since when."""

    def look(self, now: float, found: Mapping[str, Fingerprint]) -> Changes:
        """Takes in what was found at ``now`` (seconds of a monotonic clock, never before an earlier look's)."""
        settled = [name for name in sorted({*self._known, *found}) if self._is_settled(name, found.get(name), now)]
        for name in [name for name in self._pending if name not in self._known and name not in found]:
            del self._pending[name]
        for name in settled:
            del self._pending[name]
            if name in found:
                self._known[name] = found[name]
            else:
                del self._known[name]
        return Changes(tuple(name for name in settled if name in found), tuple(name for name in settled if name not in found))

    def next_look(self) -> float | None:
        """When a change that is pending may have settled; None when none is."""
        return min((since + self._settle_s for _, since in self._pending.values()), default=None)

    def _is_settled(self, name: str, fingerprint: Fingerprint | None, now: float) -> bool:
        if fingerprint == self._known.get(name):
            self._pending.pop(name, None)
            return False
        pending = self._pending.get(name)
        if pending is None or pending[0] != fingerprint:
            self._pending[name] = (fingerprint, now)
            return False
        return now - pending[1] >= self._settle_s
