"""Models that share a device, loaded for real: ONNX Runtime's executions are watched, not replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_grpc.backends.base import EngineTraits
from core_grpc.backends.onnxruntime import backend as onnxruntime_backend
from core_grpc.errors import ModelLoadFailed, ModelNotReady
from core_grpc.lifecycle import ModelState
from core_grpc.models.compute import compute_grants, gate_orders
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.model import Execution
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.overrides import LoadOverride
from core_grpc.scheduler.grants import GateOrder
from core_grpc.scheduler.resources import ResourceNeed
from core_grpc.settings import ModelsSettings, SettingsError
from core_grpc.types import Array
from tests.support.models import write_identity, write_slow_fp32
from tests.support.serving import Served, serving

X = {"X": np.ones((1, 2), np.float32)}
ENGINE, ELSEWHERE = EngineTraits(shares_copy=True, computes_on_device=True), EngineTraits()


def write_slow(repository: Path, name: str, config: str) -> None:
    """``slow_fp32`` under another name, one row at a time, a few milliseconds each."""
    write_slow_fp32(repository / "made", f"max_batch_size = 1\n[onnxruntime]\nintra_op_threads = 1\n{config}", trips=5)
    (repository / "made" / "slow_fp32").rename(repository / name)
    (repository / "made").rmdir()


class Watch:
    """Which models execute, and how many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        """The first word of the executing thread's name, which is the model's."""
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        execute = onnxruntime_backend._Instance.execute

        def watched(instance: Any, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            with self._lock:
                self.log.append(threading.current_thread().name.partition("/")[0])
                self._now += 1
                self.most = max(self.most, self._now)
            try:
                return execute(instance, inputs)
            finally:
                with self._lock:
                    self._now -= 1

        monkeypatch.setattr(onnxruntime_backend._Instance, "execute", watched)

    def forget(self) -> None:
        """The warm-up, which asks nobody."""
        self.log.clear()
        self.most = 0


def flood(served: Served, name: str, count: int) -> list[asyncio.Task[Execution]]:
    return [asyncio.create_task(served.find(name).infer(X, 1)) for _ in range(count)]


async def test_a_flood_of_one_model_does_not_starve_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    write_slow(tmp_path, "hot", "[instances]\ncount = 3\n")
    write_slow(tmp_path, "rare", "")
    async with serving(tmp_path, ModelsSettings(cpu_slots=1)) as served:
        watch.forget()
        hot = flood(served, "hot", 30)
        await asyncio.wait(hot, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(3):
            began = len(watch.log)
            await served.find("rare").infer(X, 1)
            assert "rare" in watch.log[began : began + 3], "thirty were queued before it, and it is next"
        await asyncio.gather(*hot)
        assert (watch.most, watch.log.count("hot"), watch.log.count("rare")) == (1, 30, 3)


async def test_slots_come_back_from_models_that_are_loaded_anew_and_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    for name in ("a", "b"):
        write_slow(tmp_path, name, '[[instances]]\ncount = 2\nresources = [{ name = "R" }]\n')
    async with serving(tmp_path, ModelsSettings(cpu_slots=1)) as served, asyncio.timeout(30):
        for _ in range(3):
            work = flood(served, "a", 8) + flood(served, "b", 8)
            await served.control.load("a")
            await served.control.unload("b")
            outcomes = await asyncio.gather(*work, return_exceptions=True)
            assert all(isinstance(outcome, Execution | ModelNotReady) for outcome in outcomes)
            await served.control.load("b")
        watch.forget()
        await asyncio.gather(*flood(served, "a", 3), *flood(served, "b", 3))
        assert (watch.most, sorted(watch.log)) == (1, ["a"] * 3 + ["b"] * 3)


async def test_a_shared_resource_keeps_executions_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    for name in ("a", "b"):
        write_slow(tmp_path, name, '[instances]\ncount = 2\nresources = [{ name = "licence", global = true }]\n')
    async with serving(tmp_path, ModelsSettings(cpu_slots=8)) as served:
        watch.forget()
        await asyncio.gather(*flood(served, "a", 10), *flood(served, "b", 10))
        assert (watch.most, len(watch.log)) == (1, 20)


async def test_a_resource_that_cannot_be_had(tmp_path: Path) -> None:
    write_identity(tmp_path, "same", {"X": ("FP32", [-1, 1])}, '[instances]\nresources = [{ name = "R", count = 3 }]\n')
    settings = ModelsSettings(resources="R:2")
    async with serving(tmp_path, settings) as served:
        (entry,) = served.entries()
        reason = "model.toml: [instances] resources: 'R' count: wanted at most 2, all that TENSORGATE_MODELS_RESOURCES gives, got 3"
        assert (entry.state, entry.reason) == (ModelState.UNAVAILABLE, reason)
        with pytest.raises(ModelLoadFailed, match="wanted at most 2"):
            await served.control.load("same")
        await served.control.load("same", LoadOverride(instances=(InstanceGroup(resources=(ResourceNeed("R", 2),)),)))
        assert (await served.find("same").infer({"X": X["X"][:, :1]}, 1)).outputs["Y"].tolist() == [[1]]
    with pytest.raises(SettingsError, match="TENSORGATE_MODELS_RESOURCES: wanted NAME:COUNT"):
        compute_grants(ModelsSettings(resources="R"))


def test_who_has_to_ask() -> None:
    needs = (ResourceNeed("R"),)
    one = ModelConfig(instances=(InstanceGroup(kind="cpu", count=2),))
    assert gate_orders(one, ENGINE) == [GateOrder("cpu")] * 2
    assert gate_orders(one, ELSEWHERE) == []
    shares = ModelConfig(instances=(InstanceGroup(kind="cpu"),), share_weight=2.0)
    assert gate_orders(shares, ELSEWHERE) == [GateOrder("cpu")]
    groups = (InstanceGroup(kind="gpu", devices=(0, 2)), InstanceGroup(kind="cpu", resources=needs, priority=3))
    limited = ModelConfig(instances=groups)
    assert gate_orders(limited, ELSEWHERE) == [
        GateOrder("gpu:0", takes_slot=False),
        GateOrder("gpu:2", takes_slot=False),
        GateOrder("cpu", takes_slot=False, needs=needs, priority=3),
    ]


@pytest.mark.parametrize(("cpu_slots", "gpu_slots", "expected"), [(0, 0, (1, 2)), (5, 0, (5, 2)), (0, 7, (1, 7))])
def test_the_slots_of_the_settings(cpu_slots: int, gpu_slots: int, expected: tuple[int, int]) -> None:
    grants = compute_grants(ModelsSettings(intra_op_threads=1024, cpu_slots=cpu_slots, gpu_slots=gpu_slots))
    grants.gates([GateOrder("cpu"), GateOrder("gpu:0")])
    assert (grants.shares["cpu"].slots, grants.shares["gpu:0"].slots) == expected
