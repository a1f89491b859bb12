"""Models that come, change and go while they are asked: never from the wrong version, never a gap, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core_grpc.errors import GatewayError, InvalidArgument, ModelLoadFailed, ModelNotReady, NotFound, ServerDraining
from core_grpc.lifecycle import ModelState
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.overrides import LoadOverride, TensorOverride
from core_grpc.types import Datatype
from tests.support import models as fixtures
from tests.support.models import write_plus
from tests.support.serving import Served, eventually, serving


async def answer(served: Served, name: str = "plus", version: str = "") -> float:
    model = served.find(name, version)
    model.users += 1
    try:
        return float((await model.infer({"X": np.zeros((1, 1), np.float32)}, 1)).outputs["Y"][0, 0])
    finally:
        model.release()


def states(served: Served, name: str = "plus") -> dict[str, str]:
    return {entry.version: f"{entry.state} {entry.reason}".strip() for entry in served.entries() if entry.name == name}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """LIFE-12: no directory of uploaded files, and no instance's thread."""
    uploads = tmp_path_factory.mktemp("uploads")
    monkeypatch.setattr(tempfile, "tempdir", str(uploads))
    yield
    assert not list(uploads.iterdir())
    instances = [thread for thread in threading.enumerate() if thread.name.startswith(("plus/", "slow/"))]
    for thread in instances:
        thread.join(10)  # It says that it has ended just before it has.
    assert not [thread.name for thread in instances if thread.is_alive()]


async def test_life_15_after_unload_everything_agrees(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        await served.control.unload("plus")
        assert states(served) == {"1": "UNAVAILABLE unloaded"}
        assert served.versions("plus") == []
        for version in ("", "1"):
            with pytest.raises(NotFound, match="unknown model"):
                served.find("plus", version)
        await served.control.unload("plus")
        await served.control.load("plus")
        assert await answer(served) == 1
        with pytest.raises(NotFound, match="no such model"):
            await served.control.unload("nope")


async def test_life_01_unload_lets_running_requests_finish(tmp_path: Path) -> None:
    config = "max_batch_size = 1\n[warmup]\ncount = 0\n[identity]\ndelay_ms = 60"
    fixtures.write_identity(tmp_path, "slow", {"X": ("FP32", [-1, 1])}, config)
    async with serving(tmp_path) as served:
        running = [asyncio.create_task(answer(served, "slow")) for _ in range(8)]
        await asyncio.sleep(0.02)
        unloading = asyncio.create_task(served.control.unload("slow"))
        await asyncio.sleep(0.02)
        assert states(served, "slow") == {"1": "UNLOADING"}
        with pytest.raises(GatewayError):
            served.find("slow")
        assert await asyncio.gather(*running) == [0.0] * 8
        await unloading
        assert states(served, "slow") == {"1": "UNAVAILABLE unloaded"}
        await served.control.load("slow")
        assert await answer(served, "slow") == 0


async def test_life_06_a_new_version_takes_over_without_a_gap(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        got: list[float] = []
        is_over = asyncio.Event()

        async def ask() -> None:
            while not is_over.is_set():
                got.append(await answer(served))

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0.02)
        write_plus(tmp_path, 2)
        await served.control.load("plus")
        await asyncio.sleep(0.02)
        is_over.set()
        await asking
        assert got == sorted(got), "once the new one has answered, the old one does not"
        assert set(got) == {1, 2}
        with pytest.raises(NotFound):
            served.find("plus", "1")


async def test_life_02_a_broken_file_keeps_the_old_version(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        file = tmp_path / "plus" / "1" / "model.onnx"
        good = file.read_bytes()
        for broken in (os.urandom(1000), b"", good[: len(good) // 2]):
            file.write_bytes(broken)
            with pytest.raises(ModelLoadFailed, match=r"failed to load 'plus', version 1: model\.onnx"):
                await served.control.load("plus")
            assert await answer(served) == 1
            assert states(served)["1"].startswith("READY the last load failed: version 1: model.onnx")
        file.write_bytes(good)
        await served.control.load("plus")
        assert states(served) == {"1": "READY"}


async def test_a_model_that_was_not_there_at_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(NotFound, match="failed to load 'plus', failed to poll from model repository"):
            await served.control.load("plus")
        write_plus(tmp_path, 3)
        await served.control.load("plus")
        assert await answer(served) == 3
        shutil.rmtree(tmp_path / "plus")
        with pytest.raises(NotFound):
            await served.control.load("plus")
        assert await answer(served) == 3, "what is served stays"


@pytest.mark.parametrize("name", ["", ".", "..", "../other/plus", "/etc", "plus/1", ".hidden", "plus\0", "plus/../plus"])
async def test_sec_01_a_name_that_leaves_the_repository(tmp_path: Path, name: str) -> None:
    write_plus(tmp_path / "repository", 1)
    write_plus(tmp_path / "other", 1)
    async with serving(tmp_path / "repository") as served:
        with pytest.raises(NotFound):
            await served.control.load(name)


async def test_overrides(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    write_plus(tmp_path / "elsewhere", 7)
    content = (tmp_path / "elsewhere" / "plus" / "7" / "model.onnx").read_bytes()
    shutil.rmtree(tmp_path / "elsewhere")
    async with serving(tmp_path) as served:
        await served.control.load("plus", LoadOverride(max_batch_size=3, instances=(InstanceGroup(count=2),)))
        assert served.find("plus").spec.max_batch_size == 3
        await served.control.load("plus", LoadOverride(files={"9/model.onnx": content}))
        assert (await answer(served), served.versions("plus")) == (7, ["9"])
        for path in ("model.onnx", "../1/model.onnx", "1/../../x", "1/" + "a" * 300, "/1/model.onnx", "1/model.py"):
            with pytest.raises(InvalidArgument):
                await served.control.load("plus", LoadOverride(files={path: content}))
        with pytest.raises(ModelLoadFailed):
            await served.control.load("plus", LoadOverride(files={"9/model.onnx": b"junk"}))
        assert await answer(served) == 7
        wrong = LoadOverride(max_batch_size=8, inputs={"X": TensorOverride(Datatype.FP32, (2,))})
        with pytest.raises(ModelLoadFailed, match=r"\[input.X\] shape: wanted \[-1, 1\], as the model has it, got \[-1, 2\]"):
            await served.control.load("plus", wrong)
        await served.control.load("plus")
        assert await answer(served) == 1


async def test_life_04_a_failing_load_holds_up_no_other(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    fixtures.write_badload(tmp_path)
    async with serving(tmp_path) as served:
        results = await asyncio.gather(*(served.control.load(name) for name in ("badload", "plus", "badload")), return_exceptions=True)
        assert [type(result) for result in results] == [ModelLoadFailed, type(None), ModelLoadFailed]


async def test_loads_of_one_model_come_one_after_the_other(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        work = [served.control.load("plus") if n % 2 else served.control.unload("plus") for n in range(12)]
        await asyncio.gather(*work)
        assert await answer(served) == 1


async def test_a_caller_who_leaves_does_not_break_off_a_load(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        await served.control.unload("plus")
        loading = asyncio.create_task(served.control.load("plus"))
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        for _ in range(200):
            if served.versions("plus"):
                break
            await asyncio.sleep(0.01)
        assert await answer(served) == 1


async def test_life_11_stop_while_a_model_is_loading(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        loading = [asyncio.create_task(served.control.load("plus")) for _ in range(3)]
        await asyncio.sleep(0)
        await served.control.close()
        results = await asyncio.gather(*loading, return_exceptions=True)
        assert all(result is None or isinstance(result, ServerDraining) for result in results), results
        with pytest.raises(ServerDraining):
            await served.control.load("plus")


@pytest.mark.parametrize("seed", range(5))
async def test_any_order_of_operations(tmp_path: Path, seed: int) -> None:
    """Loads, unloads, new and vanishing versions and requests at once: each answer is that of a version that was there."""
    dice = random.Random(seed)
    write_plus(tmp_path, 1)
    there = {1}
    async with serving(tmp_path) as served:

        async def ask() -> None:
            for _ in range(30):
                try:
                    assert await answer(served) in there
                except (NotFound, GatewayError):
                    await asyncio.sleep(0.002)

        async def change() -> None:
            for _ in range(15):
                kind = dice.choice(["load", "load", "unload", "new", "broken"])
                if kind == "new" and max(there) < 5:
                    write_plus(tmp_path, max(there) + 1)
                    there.add(max(there) + 1)
                try:
                    if kind == "unload":
                        await served.control.unload("plus")
                    elif kind == "broken":
                        await served.control.load("plus", LoadOverride(files={"6/model.onnx": b"junk"}))
                    else:
                        await served.control.load("plus")
                except ModelLoadFailed:
                    pass

        await asyncio.gather(change(), ask(), ask())
        await served.control.load("plus")
        assert await answer(served) == max(there)
        assert list(states(served).values()) == [ModelState.READY]


async def test_work_that_takes_longer_than_the_grace_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        model = served.find("plus")
        model.users += 1
        served.control._grace_s = 0.01
        await served.control.unload("plus")
        assert "work that took longer than 0.01 s is cut off" in caplog.text
        with pytest.raises(ModelNotReady):
            await model.infer({"X": np.zeros((1, 1), np.float32)}, 1)


async def test_a_stop_frees_versions_whose_place_was_taken_meanwhile(tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    async with serving(tmp_path) as served:
        old = served.find("plus")
        old.users += 1
        write_plus(tmp_path, 2)
        loading = asyncio.create_task(served.control.load("plus"))
        await eventually(lambda: served.find("plus").spec.version == "2")
        assert str(old.lifecycle.state) == "UNLOADING"
        await served.control.close()
        assert str(old.lifecycle.state) == "UNAVAILABLE"
        with pytest.raises(ServerDraining):
            await loading
