"""A repository on disk that changes while it is served: real files, real events of the file system, no request to load anything."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_grpc.errors import GatewayError, NotFound
from core_grpc.models.fingerprints import fingerprints
from core_grpc.models.poller import RepositoryPoller, _watch
from tests.support.models import write_plus
from tests.support.python_models import write_gated
from tests.support.serving import Served, eventually

SETTLE_S = 0.1
NEVER_S = 3600.0
"""An interval that no test lives to see: what is found is found because the file system reported it."""


@asynccontextmanager
async def polled(repository: Path, interval_s: float = NEVER_S) -> AsyncIterator[Served]:
    served = Served(repository)
    poller = RepositoryPoller(repository, served.control, interval_s, SETTLE_S)
    await poller.first_look()
    await served.control.load_all()
    following = asyncio.create_task(poller.run())
    try:
        yield served
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await served.control.close()


def states(served: Served) -> dict[str, str]:
    return {f"{entry.name}/{entry.version}": f"{entry.state} {entry.reason}".strip() for entry in served.entries()}


async def answer(served: Served, name: str = "plus") -> float:
    return float((await served.find(name).infer({"X": np.zeros((1, 1), np.float32)}, 1)).outputs["Y"][0, 0])


async def test_models_and_versions_that_come_and_go(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with polled(tmp_path) as served:
        write_plus(tmp_path, 2)
        await eventually(lambda: "plus/2" in states(served))
        assert await answer(served) == 2
        write_plus(tmp_path, 5, "late")
        await eventually(lambda: states(served).get("late/5") == "READY")
        shutil.rmtree(tmp_path / "plus" / "2")
        await eventually(lambda: "plus/1" in states(served))
        assert await answer(served) == 1
        (tmp_path / "plus" / "model.toml").write_text("max_batch_size = 3\n")
        await eventually(lambda: served.find("plus").spec.max_batch_size == 3)
        shutil.rmtree(tmp_path / "plus")
        await eventually(lambda: "plus/1" not in states(served))
        with pytest.raises(NotFound, match="unknown model"):
            served.find("plus")
        assert states(served) == {"late/5": "READY"}


async def test_life_07_a_half_copied_version_leaves_the_old_one_serving(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    write_plus(tmp_path / "elsewhere", 3)
    content = (tmp_path / "elsewhere" / "plus" / "3" / "model.onnx").read_bytes()
    shutil.rmtree(tmp_path / "elsewhere")
    async with polled(tmp_path) as served:
        new = tmp_path / "plus" / "3" / "model.onnx"
        new.parent.mkdir()
        # A copy that pauses for longer than files have to settle: half a file is loaded, and refused.
        new.write_bytes(content[: len(content) // 2])
        await eventually(lambda: "the last load failed: version 3: model.onnx" in states(served).get("plus/1", ""))
        assert states(served)["plus/1"].startswith("READY ")
        assert await answer(served) == 1
        new.write_bytes(content)
        await eventually(lambda: states(served) == {"plus/3": "READY"})
        assert await answer(served) == 3


async def test_a_model_that_was_half_copied_at_start(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    file = tmp_path / "plus" / "1" / "model.onnx"
    content = file.read_bytes()
    file.write_bytes(content[:20])
    async with polled(tmp_path) as served:
        assert states(served)["plus/1"].startswith("UNAVAILABLE model.onnx")
        file.write_bytes(content)
        await eventually(lambda: states(served) == {"plus/1": "READY"})


async def test_a_file_system_that_reports_nothing_is_looked_at_in_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_grpc.models.poller._watch", lambda *_: None)
    write_plus(tmp_path, 1)
    async with polled(tmp_path, interval_s=0.05) as served:
        write_plus(tmp_path, 2)
        await eventually(lambda: states(served) == {"plus/2": "READY"})


async def test_a_change_before_the_watch_began_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_watch, looks = threading.Event(), list[int]()

    def late(*given: Any) -> None:
        may_watch.wait()
        _watch(*given)

    def counted(repository: Path) -> Mapping[str, bytes]:
        found = fingerprints(repository)
        looks.append(1)
        return found

    monkeypatch.setattr("core_grpc.models.poller._watch", late)
    monkeypatch.setattr("core_grpc.models.poller.fingerprints", counted)
    write_plus(tmp_path, 1)
    async with polled(tmp_path) as served:
        await eventually(lambda: len(looks) == 2)
        write_plus(tmp_path, 2)
        may_watch.set()
        await eventually(lambda: states(served) == {"plus/2": "READY"})


async def test_a_repository_that_is_away_for_a_while_keeps_its_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_plus(tmp_path / "models", 1)
    async with polled(tmp_path / "models", interval_s=0.05) as served:
        (tmp_path / "models").rename(tmp_path / "away")
        await eventually(lambda: "cannot be read" in caplog.text)
        assert await answer(served) == 1
        (tmp_path / "away").rename(tmp_path / "models")
        write_plus(tmp_path / "models", 2)
        await eventually(lambda: states(served) == {"plus/2": "READY"})


async def test_a_slow_load_holds_up_no_other(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_plus(repository, 1)
    async with polled(repository) as served:
        write_gated(repository, "slow", tmp_path / "gate")
        await eventually(lambda: states(served).get("slow/1") == "LOADING")
        write_plus(repository, 2)
        await eventually(lambda: "plus/2" in states(served))
        assert states(served)["slow/1"] == "LOADING"
        (tmp_path / "gate").touch()
        await eventually(lambda: states(served)["slow/1"] == "READY")


async def test_answers_go_on_while_versions_change(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with polled(tmp_path) as served:
        got: list[float] = []

        async def ask() -> None:
            while not got or got[-1] < 4:
                got.append(await answer(served))

        asking = asyncio.create_task(ask())
        for version in (2, 3, 4):
            write_plus(tmp_path, version)
            await eventually(lambda: got[-1:] == [version])  # noqa: B023 (awaited at once)
        await asking
        assert got == sorted(got)
        with pytest.raises(GatewayError):
            served.find("plus", "1")
