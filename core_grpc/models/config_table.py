"""Strict reading of TOML tables: every key is known, every value has its type and range, and an error names file, key, wanted and got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from core_grpc.errors import ModelLoadFailed, one_line

Choice = TypeVar("Choice")


class ConfigTable:
    """One table of model.toml. Take what is known, then call ``finish``: what is left is unknown."""

    def __init__(self, where: str, table: object) -> None:
        self.where = where
        """``model.toml`` or ``model.toml: [batching]``, the start of every error text."""
        if not isinstance(table, dict):
            raise ModelLoadFailed(f"{where}: wanted a table, got {shown(table)}")
        self._table: Mapping[str, Any] = table
        self._taken: set[str] = set()
        self._known: set[str] = set()

    def __contains__(self, key: str) -> bool:
        self._known.add(key)
        return key in self._table

    def failure(self, key: str, wanted: str) -> ModelLoadFailed:
        """The error for a value that is not what was wanted."""
        return ModelLoadFailed(f"{self.where} {key}: wanted {wanted}, got {shown(self._table[key])}")

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is."""
        self._known.add(key)
        self._taken.add(key)
        return self._table.get(key, default)

    def text(self, key: str, default: str = "") -> str:
        """A text of one line."""
        value = self.take(key, default)
        if not isinstance(value, str) or not value.isprintable():
            raise self.failure(key, "a text of one line")
        return value

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.failure(key, f"a whole number from {low} to {high}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.failure(key, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts of one line, none of them empty or twice."""
        value = self.take(key, [])
        is_right = isinstance(value, list) and all(isinstance(item, str) and item and item.isprintable() for item in value)
        if not is_right or len(set(value)) != len(value):
            raise self.failure(key, "a list of different texts")
        return tuple(value)

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of ascending whole numbers above 0."""
        value = self.take(key, [])
        is_right = isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in value)
        if not is_right or sorted(set(value)) != value:
            raise self.failure(key, "ascending whole numbers above 0")
        return tuple(value)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """A list of sizes, -1 for a variable one; None where there is none."""
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) and size >= -1 for size in value):
            return tuple(value)
        raise self.failure(key, "a list of sizes, -1 for a variable one")

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.failure(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, key: str, choices: Mapping[str, Choice]) -> Choice:
        """One of the texts that are the keys of ``choices``."""
        value = self.take(key)
        if not isinstance(value, str) or value not in choices:
            raise self.failure(key, f"one of {', '.join(choices)}")
        return choices[value]

    def table(self, key: str) -> ConfigTable:
        """The table under ``key``; empty when it is not there."""
        start = self.where.removesuffix("]")
        where = f"{start}.{key}]" if start != self.where else f"{self.where}: [{key}]"
        return ConfigTable(where, self.take(key, {}))

    def array(self, key: str) -> Sequence[ConfigTable]:
        """The tables of the array ``[[key]]``; none when it is not there."""
        value = self.take(key, [])
        start = self.where.removesuffix("]")
        where = f"{start.replace('[', '[[')}.{key}]]" if start != self.where else f"{self.where}: [[{key}]]"
        if not isinstance(value, list):
            raise ModelLoadFailed(f"{where}: wanted tables, got {shown(value)}")
        return [ConfigTable(where, item) for item in value]

    def tables(self) -> Iterable[tuple[str, ConfigTable]]:
        """All values, each of which must be a table, by key."""
        return [(key, self.table(key)) for key in self._table]

    def take_all(self) -> Mapping[str, Any]:
        """The whole table, for a reader that checks its keys itself."""
        self._taken.update(self._table)
        return self._table

    def finish(self) -> None:
        """Refuses the keys that nobody took."""
        for key in self._table:
            if key not in self._taken:
                raise ModelLoadFailed(f"{self.where} {one_line(key, 100)}: no such key; it has {', '.join(sorted(self._known))}")


def shown(value: object) -> str:
    """A value from the file as its author may recognise it, capped."""
    if isinstance(value, dict):
        return "a table"
    return one_line(str(value).lower() if isinstance(value, bool) else repr(value), 100)
