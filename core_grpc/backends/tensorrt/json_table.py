"""An object of a JSON file, read with checks that say where a value is wrong."""

from __future__ import annotations

from typing import Any


class JsonError(Exception):
    """A value is missing or of another kind; the message is one line that begins with where it is."""


class JsonTable:
    """One JSON object; ``where`` begins every error text.

    All that read a key raise ``JsonError`` where it is missing or of another kind.
    """

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise JsonError(f"{where}: wanted an object, got {type(value).__name__}")
        self.where = where
        self._value: dict[str, Any] = value

    def has(self, key: str) -> bool:
        """Whether the key is there, and not null."""
        return self._value.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """A string; ``default`` where the key is missing and one is given."""
        return str(self._take(key, str, default))

    def number(self, key: str) -> int:
        """An integer."""
        return int(self._take(key, int, None))

    def real(self, key: str) -> float:
        """A number."""
        return float(self._take(key, (int, float), None))

    def flag(self, key: str) -> bool:
        """A boolean."""
        return bool(self._take(key, bool, None))

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(self._items(key, int))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where the key is missing."""
        return tuple(self._items(key, str)) if self.has(key) else ()

    def table(self, key: str) -> JsonTable:
        """An object."""
        return JsonTable(f"{self.where}: {key}", self._value.get(key))

    def counts(self, key: str) -> dict[str, int]:
        """An object of integers; empty where the key is missing."""
        if not self.has(key):
            return {}
        table = self.table(key)
        return {name: table.number(name) for name, _ in table.items()}

    def named_texts(self, key: str) -> dict[str, str]:
        """An object of strings; empty where the key is missing."""
        if not self.has(key):
            return {}
        table = self.table(key)
        return {name: table.text(name) for name, _ in table.items()}

    def tables(self, key: str) -> list[JsonTable]:
        """A list of objects."""
        return [JsonTable(f"{self.where}: {key}[{index}]", item) for index, item in enumerate(self._items(key, dict))]

    def items(self) -> list[tuple[str, Any]]:
        """Every key with its value, unchecked."""
        return list(self._value.items())

    def _items(self, key: str, kind: type) -> list[Any]:
        found: list[Any] = self._take(key, list, None)
        for index, item in enumerate(found):
            _check(f"{self.where}: {key}[{index}]", item, kind)
        return found

    def _take(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        if key not in self._value:
            if default is None:
                raise JsonError(f"{self.where}: {key} is missing")
            return default
        _check(f"{self.where}: {key}", self._value[key], kind)
        return self._value[key]


def _check(where: str, value: Any, kind: type | tuple[type, ...]) -> None:
    # JSON's true is an int to Python.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = kind.__name__ if isinstance(kind, type) else "number"
        raise JsonError(f"{where}: wanted {wanted}, got {type(value).__name__}")


__all__ = ["JsonError", "JsonTable"]
