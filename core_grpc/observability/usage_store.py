"""Usage on disk: one SQLite file, a row for each minute, caller, model, version and outcome, whose numbers are added to.

Any number of processes of one machine may write and read it at once (write-ahead log, one transaction for each write); it belongs on
a local disk. Nothing is ever removed from it. All functions block; only the standard library is imported, for the command line's sake.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from core_grpc.observability.figures import UsageFigures, UsageKey

AUTO, OFF = "auto", "off"

NUMBERS = UsageFigures._fields
PERIODS: Mapping[str, str] = {"minute": "%Y-%m-%dT%H:%MZ", "hour": "%Y-%m-%dT%H:00Z", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""What time may be grouped by, and how it is shown: UTC."""
BY: tuple[str, ...] = (*UsageKey._fields, *PERIODS)
"""What usage may be grouped by."""

Record: TypeAlias = dict[str, str | int]

_BUSY_S = 10.0
"""How long a writer waits for another one."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    minute INTEGER NOT NULL,
    caller TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL, outcome TEXT NOT NULL,
    requests INTEGER NOT NULL, "rows" INTEGER NOT NULL, input_bytes INTEGER NOT NULL, output_bytes INTEGER NOT NULL,
    compute_ns INTEGER NOT NULL,
    PRIMARY KEY (minute, caller, model, version, outcome)
) WITHOUT ROWID
"""
_ADD = f"""
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET {", ".join(f'"{name}" = "{name}" + excluded."{name}"' for name in NUMBERS)}
"""  # noqa: S608 (the names are our own)


def database_path(setting: str, environ: Mapping[str, str] | None = None) -> Path:
    """The file that the setting ``usage.database`` names."""
    if setting != AUTO:
        return Path(setting).expanduser()
    state = (os.environ if environ is None else environ).get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tensorgate" / "usage.db"


class UsageStore:
    """Adds to the file, which is made if it is not there. May be used from any thread, by one at a time."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or sqlite3.Error where it cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Who called what is not for everybody on the machine.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            # With a write-ahead log this can lose the newest transactions to a power cut, and never damages the file.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(_SCHEMA)
        except sqlite3.Error:
            self._connection.close()
            raise

    def add(self, minute: int, usage: Mapping[UsageKey, UsageFigures]) -> None:
        """Adds usage of a minute (since the epoch): all of it, or none.

        Raises:
            sqlite3.Error: it could not be written.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_ADD, [(minute, *key, *figures) for key, figures in usage.items()])
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()


def read_usage(path: Path, by: Sequence[str], since: float | None = None, until: float | None = None) -> list[Record]:
    """Usage added up by some of ``BY``, in their order; nothing in ``by`` adds up everything.

    Args:
        since: seconds since the epoch, rounded down to the minute; None for the beginning.
        until: as ``since``, the first minute that is not meant; None for the end.

    Raises:
        sqlite3.Error: no such file, or none of usage.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as connection:
        return [_record(by, row) for row in connection.execute(_query(by), _minutes(since, until))]


def _query(by: Sequence[str]) -> str:
    groups = [f"strftime('{PERIODS[name]}', minute * 60, 'unixepoch')" if name in PERIODS else name for name in by]
    outcomes = [f"sum(CASE outcome WHEN '{outcome}' THEN requests ELSE 0 END)" for outcome in ("ok", "failed", "cancelled")]
    sums = [*(f'sum("{name}")' for name in NUMBERS), *outcomes]
    # Without groups SQL answers one row of nulls where there is nothing.
    tail = f"GROUP BY {', '.join(groups)} ORDER BY {', '.join(groups)}" if groups else "HAVING count(*) > 0"
    return f"SELECT {', '.join([*groups, *sums])} FROM usage WHERE minute >= ? AND minute < ? {tail}"  # noqa: S608 (names of ``BY``)


def _minutes(since: float | None, until: float | None) -> tuple[int, int]:
    return 0 if since is None else int(since // 60), 1 << 62 if until is None else int(until // 60)


def _record(by: Sequence[str], row: Iterable[str | int]) -> Record:
    return dict(zip([*by, *NUMBERS, "ok", "failed", "cancelled"], row, strict=True))
