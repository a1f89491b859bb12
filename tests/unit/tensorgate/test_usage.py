"""``tensorgate usage`` in every format."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from core_grpc.observability.figures import UsageFigures, UsageKey
from core_grpc.observability.usage_store import UsageStore
from tensorgate.cli import main

COLUMNS = ["caller", "day", "requests", "ok", "failed", "cancelled", "rows", "input_bytes", "output_bytes", "compute_ns"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "usage.db"
    store = UsageStore(path)
    store.add(0, {UsageKey("a", "m", "1", "ok"): UsageFigures(2, 3, 4, 5, 1_500_000_000)})
    store.add(
        60 * 24, {UsageKey("a", "m", "1", "failed"): UsageFigures(1, 0, 9, 0, 0), UsageKey("b", "n", "2", "cancelled"): UsageFigures(1)}
    )
    store.close()
    return path


def usage(database: Path, *flags: str) -> int:
    return main(["usage", "--database", str(database), *flags])


def test_the_table(database: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert usage(database) == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        "key  model  version  requests  ok  failed  cancelled  rows  input_bytes  output_bytes  compute_s",
        "a    m      1               3   2       1          0     3           13             5      1.500",
        "b    n      2               1   0       0          1     0            0             0      0.000",
    ]


def test_files(database: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    flags = ["--by", "key,day", "--since", "1970-01-01T12:00", "--until", "1970-01-03"]
    wanted = [["a", "1970-01-02", 1, 0, 1, 0, 0, 9, 0, 0], ["b", "1970-01-02", 1, 0, 0, 1, 0, 0, 0, 0]]
    assert usage(database, *flags, "--format", "csv") == 0
    rows = list(csv.reader(io.StringIO(capfdbinary.readouterr().out.decode())))
    assert rows == [COLUMNS, *([str(cell) for cell in row] for row in wanted)]
    assert usage(database, *flags, "--format", "json") == 0
    records = json.loads(capfdbinary.readouterr().out)
    assert [[record[name] for name in COLUMNS] for record in records] == wanted
    file = tmp_path / "usage.parquet"
    assert usage(database, *flags, "--format", "parquet", "--output", str(file)) == 0
    from pyarrow import parquet  # noqa: PLC0415 (the extra)

    table = parquet.read_table(file)
    assert table.column_names == COLUMNS
    assert [[record[name] for name in COLUMNS] for record in table.to_pylist()] == wanted


def test_parquet_without_pyarrow_says_what_to_install(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert usage(database, "--format", "parquet") == 1
    assert capsys.readouterr().err == "tensorgate usage: --format parquet needs pyarrow: pip install 'tensorgate[usage]'\n"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--by", "colour"], "wanted some of key, model"),
        (["--by", "day,day"], "each once"),
        (["--since", "yesterday"], "wanted a date or time such as 2026-01-31"),
    ],
)
def test_wrong_flags(database: Path, flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        usage(database, *flags)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_no_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert usage(tmp_path / "none.db") == 1
    assert "is not there: no node has metered anything yet" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "other").write_text("text" * 1000)
    assert usage(tmp_path / "other") == 1
    assert "cannot be read: file is not a database" in capsys.readouterr().err
    assert main(["usage", "--database", "off"]) == 2
    assert capsys.readouterr().err == "tensorgate usage: usage.database is off: nothing is metered\n"
