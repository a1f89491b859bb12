"""``tensorgate usage``: what was metered, as a table or a file."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from core_grpc.observability.usage_store import BY, OFF, Record, database_path, read_usage
from core_grpc.settings import SettingsError, load_settings
from tensorgate.settings import UsageReaderSettings

_NAMES = {"key": "caller"}
"""Other names of what usage is grouped by."""
_NUMBERS = ("requests", "ok", "failed", "cancelled", "rows", "input_bytes", "output_bytes", "compute_ns")


class UsageError(Exception):
    """Usage cannot be shown; the message is one line."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked."""

    by: Sequence[str]
    """Of ``BY``."""
    since: float | None
    """Seconds since the epoch; None for the beginning."""
    until: float | None
    form: str
    """Of ``FORMATS``."""
    output: str | None
    """A file; None for standard output."""


def run(environ: Mapping[str, str], query: Query) -> int:
    """Shows usage.

    Raises:
        SettingsError: metering is off.
        UsageError: there is no usage, or it cannot be written as asked.
    """
    setting = load_settings(UsageReaderSettings, environ).usage.database
    if setting == OFF:
        raise SettingsError("usage.database is off: nothing is metered")
    path = database_path(setting, environ)
    try:
        records = read_usage(path, query.by, query.since, query.until)
    except sqlite3.Error as error:
        reason = f"cannot be read: {error}" if path.exists() else "is not there: no node has metered anything yet"
        raise UsageError(f"{path} {reason}") from error
    _write(FORMATS[query.form]([*query.by, *_NUMBERS], records), query.output, is_binary=query.form == "parquet")
    return 0


def grouping(text: str) -> list[str]:
    """The names in a comma-separated list.

    Raises:
        ValueError: one is unknown or comes twice; the text says which are known.
    """
    names = [_NAMES.get(name.strip(), name.strip()) for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in BY]
    if unknown or len(set(names)) < len(names):
        raise ValueError(f"wanted some of key, {', '.join(BY[1:])}, each once, got {text!r}")
    return names


def moment(text: str) -> float:
    """A date or time in ISO 8601, UTC unless it says otherwise, as seconds since the epoch.

    Raises:
        ValueError: it is none.
    """
    parsed = datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _write(content: bytes, output: str | None, *, is_binary: bool) -> None:
    if output is not None:
        try:
            Path(output).write_bytes(content)
        except OSError as error:
            raise UsageError(f"--output: {output}: {error.strerror}") from error
        return
    if is_binary and sys.stdout.isatty():
        raise UsageError("--format parquet is binary: name a file with --output")
    stdout: BinaryIO = sys.stdout.buffer
    stdout.write(content)
    stdout.flush()


def _table(columns: Sequence[str], records: Sequence[Record]) -> bytes:
    """For people: columns aligned, numbers to the right, the engine's time in seconds."""
    shown = [name.replace("compute_ns", "compute_s").replace("caller", "key") for name in columns]
    rows = [[_cell(name, record[name]) for name in columns] for record in records]
    widths = [max(len(row[index]) for row in [shown, *rows]) for index in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width) for name, cell, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in [shown, *rows]
    ]
    return ("\n".join(lines) + "\n").encode()


def _cell(name: str, value: str | int) -> str:
    return f"{int(value) / 1e9:.3f}" if name == "compute_ns" else str(value)


def _csv(columns: Sequence[str], records: Sequence[Record]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def _json(_: Sequence[str], records: Sequence[Record]) -> bytes:
    return (json.dumps(records, ensure_ascii=False, indent=1) + "\n").encode()


def _parquet(columns: Sequence[str], records: Sequence[Record]) -> bytes:
    try:
        import pyarrow as pa  # noqa: PLC0415 (an extra: most never need it)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("--format parquet needs pyarrow: pip install 'tensorgate[usage]'") from error
    fields = [(name, pa.int64() if name in _NUMBERS else pa.string()) for name in columns]
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(records, schema=pa.schema(fields)), file)
    return file.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[str], Sequence[Record]], bytes]] = {
    "table": _table,
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
"""How usage may be shown, by name."""

__all__ = ["FORMATS", "Query", "UsageError", "grouping", "moment", "run"]
