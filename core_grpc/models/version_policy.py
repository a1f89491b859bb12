"""Which versions of a model are served: the newest few, all, or those that are named. Triton's ``ModelVersionPolicy``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_LATEST = 1000


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """One of the three: the newest ``latest``, the named ``specific`` ones, or all where neither says anything."""

    latest: int | None = 1
    """How many, 1 or more; None where the policy does not go by age."""
    specific: tuple[str, ...] = ()
    """Digits without leading zeros."""

    def served(self, found: Sequence[str]) -> list[str]:
        """The versions to serve among those that were found, which are in ascending order; so is the answer."""
        if self.latest is not None:
            return list(found[-self.latest :])
        return [version for version in found if version in self.specific] if self.specific else list(found)

    def missing(self, found: Sequence[str]) -> list[str]:
        """The named versions that are not there, ascending."""
        return sorted(set(self.specific) - set(found), key=int)


NEWEST = VersionPolicy()
ALL = VersionPolicy(latest=None)


def specific(versions: Sequence[str]) -> VersionPolicy:
    """These, of which there is at least one."""
    return VersionPolicy(latest=None, specific=tuple(versions))
