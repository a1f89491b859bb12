"""Who calls and what they may do: rights as text, and the identity of the call that the current task serves.

The edge says who it is; what that allows is decided here, by the models' names and the RPC, so that a right holds on every door and for
each request of a stream. Where no identity is asked for, nothing here refuses anything.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase

from core_grpc.errors import PermissionDenied, one_line, quoted

DOORS = ("grpc", "grpc-web", "rest")
MANAGEMENT = "management"
_SCOPE = re.compile(r"model:[A-Za-z0-9_.*?+/@-]+|door:(?:grpc-web|grpc|rest)|management")


@dataclass(frozen=True, slots=True)
class Rights:
    """What a caller may do."""

    models: tuple[str, ...] = ()
    """Patterns of model names, as of a shell: ``*``, ``?``. None: no model."""
    doors: tuple[str, ...] = DOORS
    management: bool = False
    """Load and unload models, shared memory, trace and log settings."""

    def allow_model(self, name: str) -> bool:
        """Whether the model may be used and seen."""
        return any(fnmatchcase(name, pattern) for pattern in self.models)

    def __str__(self) -> str:
        """As ``parse_rights`` reads it."""
        doors = [] if self.doors == DOORS else [f"door:{door}" for door in self.doors]
        return " ".join([*(f"model:{pattern}" for pattern in self.models), *doors, *([MANAGEMENT] if self.management else [])])


ALL_RIGHTS = Rights(("*",), DOORS, management=True)


def parse_rights(text: str) -> Rights:
    """Rights from words with spaces between: ``model:PATTERN``, ``door:NAME`` (none: every door), ``management``.

    Other words are passed over: a token's scope holds words that are for others.
    """
    words = [word for word in text.split() if _SCOPE.fullmatch(word)]
    models = tuple(word.removeprefix("model:") for word in words if word.startswith("model:"))
    doors = tuple(dict.fromkeys(word.removeprefix("door:") for word in words if word.startswith("door:")))
    return Rights(models, doors or DOORS, management=MANAGEMENT in words)


def is_pattern(text: str) -> bool:
    """Whether ``text`` can be a pattern of ``Rights.models``."""
    return _SCOPE.fullmatch(f"model:{text}") is not None


RIGHTS: ContextVar[Rights] = ContextVar("rights", default=ALL_RIGHTS)
"""Of the caller of the current task; tasks that it starts inherit them."""


def check_model(name: str) -> None:
    """Refuses a model that the caller may not use, in the same words whether it exists or not.

    Raises:
        PermissionDenied: the caller's rights do not name it.
    """
    rights = RIGHTS.get()
    if rights is not ALL_RIGHTS and not rights.allow_model(name):
        raise PermissionDenied(f"model {quoted(name)}: this caller may not use it")


def check_door(rights: Rights, door: str) -> None:
    """Raises PermissionDenied where the caller may not come through ``door``."""
    if door not in rights.doors:
        raise PermissionDenied(f"door {one_line(door, 20)}: this caller may use {', '.join(rights.doors)}")
