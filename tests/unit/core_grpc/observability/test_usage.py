"""Usage adds up: in the meter, on the disk, between processes, and when the disk fails."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_grpc.observability.caller import CALLER, caller_of
from core_grpc.observability.figures import UsageFigures, UsageKey
from core_grpc.observability.usage_keeper import UsageKeeper, opened_store
from core_grpc.observability.usage_meter import CANCELLED, FAILED, OK, RequestCharge, UsageMeter
from core_grpc.observability.usage_store import UsageStore, database_path, read_usage
from core_grpc.scheduler.charges import charge_members
from core_grpc.settings import SettingsError
from core_grpc.types import InferRequest

KEY = UsageKey("k", "m", "1", OK)
ONE = UsageFigures(1, 2, 3, 4, 5)
MEMBERS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([OK, FAILED, CANCELLED, "early"])), min_size=1, max_size=8)


@given(st.lists(st.tuples(MEMBERS, st.floats(0, 10)), max_size=10), st.data())
def test_every_request_and_every_nanosecond_is_metered_once(
    batches: list[tuple[list[tuple[int, str]], float]], data: st.DataObject
) -> None:
    """Batches whose members end in any way, some before the batch has run; what was metered is taken at any time."""
    meter, taken, counted, ns = UsageMeter(), Counter[UsageKey](), Counter[str](), 0
    for members, compute_s in batches:
        charges: list[tuple[RequestCharge, str]] = []
        batch = []
        for rows, outcome in members:
            charge = meter.open("m", "1", 10)
            charge.rows = rows
            charges.append((charge, outcome))
            batch.append(SimpleNamespace(request=InferRequest("m", "", {}, charge=charge)))
            if outcome == "early":
                charge.close(CANCELLED)
        if data.draw(st.booleans()):
            taken.update({key: figures.requests for key, figures in meter.take().items()})
        charge_members(batch, [rows for rows, _ in members], compute_s)
        ns += int(compute_s * 1_000_000_000)
        for charge, outcome in charges:
            if outcome != "early":
                charge.close(outcome)
            counted[CANCELLED if outcome == "early" else outcome] += 1
    totals = meter.totals()
    assert {key.outcome: figures.requests for key, figures in totals.items()} == counted
    assert sum(figures.compute_ns for figures in totals.values()) == ns
    assert sum(figures.rows for figures in totals.values()) == sum(rows for members, _ in batches for rows, _ in members)
    taken.update({key: figures.requests for key, figures in meter.take().items()})
    assert {key.outcome: count for key, count in taken.items() if count} == counted
    assert meter.totals() == totals
    assert meter.take() == {}


def test_shares_follow_the_rows() -> None:
    meter = UsageMeter()
    charges = [meter.open("m", "1", 0) for _ in range(2)]
    batch = [SimpleNamespace(request=InferRequest("m", "", {}, charge=charge)) for charge in charges]
    charge_members([*batch, SimpleNamespace(request=None)], [1, 3, 4], 8e-9)
    charges[0].close(OK)
    charges[1].close(FAILED)
    assert {key.outcome: figures.compute_ns for key, figures in meter.totals().items()} == {OK: 1, FAILED: 3}


def test_the_caller_is_the_edges_word_in_one_short_line() -> None:
    assert caller_of({"x-tensorgate-caller": "key-1"}) == "key-1"
    assert caller_of({}) == caller_of({"x-tensorgate-caller": ""}) == CALLER.get() == "anonymous"
    assert len(caller_of({"x-tensorgate-caller": "k" * 1000})) == 128
    assert caller_of({"x-tensorgate-caller": "a\nb"}) == "a\\nb"


class TestStore:
    def test_it_adds_up_by_what_is_asked(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "usage.db"
        store = UsageStore(path)
        store.add(0, {KEY: ONE, KEY._replace(outcome=FAILED): ONE})
        store.add(0, {KEY: ONE})
        store.add(60 * 24, {KEY: ONE, KEY._replace(model="n"): ONE})
        store.close()
        assert path.stat().st_mode & 0o777 == 0o600
        (total,) = read_usage(path, [])
        assert total == {
            "requests": 5,
            "rows": 10,
            "input_bytes": 15,
            "output_bytes": 20,
            "compute_ns": 25,
            "ok": 4,
            "failed": 1,
            "cancelled": 0,
        }
        by_day = {(item["day"], item["model"]): item["requests"] for item in read_usage(path, ["day", "model"])}
        assert by_day == {("1970-01-01", "m"): 3, ("1970-01-02", "m"): 1, ("1970-01-02", "n"): 1}
        assert [item["requests"] for item in read_usage(path, [], until=86400)] == [3]
        assert [item["requests"] for item in read_usage(path, [], since=86400)] == [2]
        assert read_usage(path, [], since=86400 * 9) == read_usage(path, ["model"], since=86400 * 9) == []

    def test_processes_share_the_file(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path\n"
            "from core_grpc.observability.figures import UsageFigures, UsageKey\n"
            "from core_grpc.observability.usage_store import UsageStore\n"
            "store = UsageStore(Path(sys.argv[1]))\n"
            "for n in range(100): store.add(n % 3, {UsageKey('k', 'm', '1', 'ok'): UsageFigures(1, 2, 3, 4, 5)})\n"
        )
        path = tmp_path / "usage.db"
        running = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
        assert [process.wait() for process in running] == [0, 0, 0]
        assert [item["requests"] for item in read_usage(path, [])] == [300]
        assert [item["compute_ns"] for item in read_usage(path, ["minute"])] == [510, 495, 495]

    def test_the_usual_place(self) -> None:
        assert database_path("auto", {"XDG_STATE_HOME": "/state"}) == Path("/state/tensorgate/usage.db")
        assert database_path("auto", {}) == Path("~/.local/state/tensorgate/usage.db").expanduser()
        assert database_path("/x/y.db", {}) == Path("/x/y.db")

    def test_a_file_that_was_named_must_be_writable(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no database\n" * 100)
        for name, reason in (("file/usage.db", "Not a directory|File exists"), ("file", "not a database")):
            with pytest.raises(SettingsError, match=f"TENSORGATE_USAGE_DATABASE: cannot keep usage in .*: .*({reason})"):
                opened_store(str(tmp_path / name))

    def test_the_usual_place_may_be_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
        assert opened_store("auto") is None
        assert "usage is not kept" in caplog.text


class FailingStore(UsageStore):
    """A store whose disk is full while ``is_full``."""

    is_full = False

    def add(self, minute: int, usage: object) -> None:
        if self.is_full:
            raise sqlite3.OperationalError("database or disk is full")
        super().add(minute, usage)  # type: ignore[arg-type]


class TestKeeper:
    async def test_minutes_failures_and_the_end(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "usage.db"
        store, meter, now = await asyncio.to_thread(FailingStore, path), UsageMeter(), 59.0
        keeper = UsageKeeper(store, 3600, meter, lambda: now)
        meter.open("m", "1", 1).close(OK)
        now = 60.001
        await keeper.flush()
        assert [(item["minute"], item["requests"]) for item in await asyncio.to_thread(read_usage, path, ["minute"])] == [
            ("1970-01-01T00:00Z", 1)
        ]
        store.is_full = True
        for _ in range(2):
            meter.open("m", "1", 1).close(OK)
            await keeper.flush()
        assert caplog.text.count("usage cannot be written") == 1
        now = 120.0
        meter.open("m", "1", 1).close(OK)
        await keeper.flush()
        store.is_full = False
        meter.open("m", "1", 1).close(FAILED)
        await keeper.close()
        kept = [(item["minute"], item["requests"]) for item in await asyncio.to_thread(read_usage, path, ["minute"])]
        assert kept == [("1970-01-01T00:00Z", 1), ("1970-01-01T00:01Z", 3), ("1970-01-01T00:02Z", 1)]
