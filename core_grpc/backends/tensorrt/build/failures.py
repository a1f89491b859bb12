"""How a build ends without a plan."""

from __future__ import annotations

from collections.abc import Sequence


class BuildRefused(Exception):
    """There will be no plan.

    The message is one line: what is wrong. ``details`` are lines that follow it: each node, each input, and what to do about it.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)

    def lines(self) -> tuple[str, ...]:
        """Everything, the message first."""
        return (str(self.args[0]), *self.details)


class BuildCancelled(Exception):
    """The user wanted no plan any more; nothing was written."""
