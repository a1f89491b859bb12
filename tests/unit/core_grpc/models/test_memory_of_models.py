"""LIFE-12: loads that fail, and models that are unloaded, leave neither memory nor open files nor threads behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.freed_memory import trim
from core_grpc.types import Datatype
from tests.support.models import onnx_model, write_onnx
from tests.support.serving import Served, eventually, serving

MB = 1 << 20
WEIGHTS_MB = 2
TIMES = 60
MOST_MB = 20
"""What may stay: allocators keep some models' worth, now more, now less. If each load left its weights, it were six times as much."""


def write_heavy(repository: Path) -> None:
    """``heavy``: Y = X W, with 2 MB of weights."""
    weights = np.random.default_rng(0).random((WEIGHTS_MB * MB // 4096, 1024), np.float32)
    shapes = {"X": (Datatype.FP32, ("batch", weights.shape[0]))}, {"Y": (Datatype.FP32, ("batch", 1024))}
    model = onnx_model([helper.make_node("MatMul", ["X", "W"], ["Y"])], *shapes, [numpy_helper.from_array(weights, "W")])
    write_onnx(repository, "heavy", model)


def resident_mb() -> float:
    """Of this process, without what the C library keeps for later; the server gives that back as well, within seconds."""
    trim()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def held() -> tuple[int, int]:
    """Open files, and threads of instances."""
    return len(os.listdir("/proc/self/fd")), sum(thread.name.startswith("heavy/") for thread in threading.enumerate())  # noqa: PTH208


async def fail(served: Served) -> None:
    with pytest.raises(ModelLoadFailed, match=r"\[output.NOPE\]: the model has no such output"):
        await served.control.load("heavy")


async def come_and_go(served: Served) -> None:
    await served.control.load("heavy")
    assert served.find("heavy").spec.max_batch_size == 8
    await served.control.unload("heavy")


async def test_loads_that_fail(tmp_path: Path) -> None:
    write_heavy(tmp_path)
    (tmp_path / "heavy" / "model.toml").write_text("[output.NOPE]\n")
    async with serving(tmp_path) as served:
        for _ in range(10):
            await fail(served)
        memory, things = resident_mb(), held()
        for _ in range(TIMES):
            await fail(served)
        await eventually(lambda: resident_mb() - memory < MOST_MB)
        await eventually(lambda: held() <= things)
        (tmp_path / "heavy" / "model.toml").unlink()
        await served.control.load("heavy")
        assert served.find("heavy").spec.outputs[0].name == "Y"


async def test_models_that_are_unloaded(tmp_path: Path) -> None:
    write_heavy(tmp_path)
    async with serving(tmp_path) as served:
        await served.control.unload("heavy")
        for _ in range(3):
            await come_and_go(served)
        memory, things = resident_mb(), held()
        for _ in range(TIMES):
            await come_and_go(served)
        await eventually(lambda: resident_mb() - memory < MOST_MB)
        await eventually(lambda: held() <= things)
