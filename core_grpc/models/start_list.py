"""Which models of the repository are loaded at start: the setting ``models.load``, as Triton's ``--load-model``."""

from __future__ import annotations

from dataclasses import dataclass

from core_grpc.settings import ModelsSettings, SettingsError

EVERY = "*"


@dataclass(frozen=True, slots=True)
class StartList:
    """All models, or those that are named."""

    names: tuple[str, ...] | None = None
    """None for all."""

    def __contains__(self, name: str) -> bool:
        return self.names is None or name in self.names

    def missing(self, found: frozenset[str]) -> list[str]:
        """The named models that are not among those that were found, in the order of the setting."""
        return [name for name in self.names or () if name not in found]


def start_list(settings: ModelsSettings) -> StartList:
    """Reads the setting.

    Raises:
        SettingsError: names are given where models cannot be loaded later, or ``*`` stands beside them.
    """
    if settings.load.strip() == EVERY:
        return StartList()
    if settings.control != "explicit":
        raise SettingsError(f"TENSORGATE_MODELS_LOAD: wanted * with models.control = {settings.control}, got {settings.load!r}")
    names = tuple(dict.fromkeys(name.strip() for name in settings.load.split(",") if name.strip()))
    if EVERY in names:
        raise SettingsError(f"TENSORGATE_MODELS_LOAD: wanted * alone, or names with commas between, got {settings.load!r}")
    return StartList(names)
