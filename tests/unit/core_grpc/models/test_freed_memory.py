"""What a model took goes back to the system when it is unloaded."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from core_grpc.models import freed_memory
from core_grpc.models.freed_memory import FreedMemory
from core_grpc.types import Datatype
from tests.support import models as fixtures
from tests.support.memory_of_a_model import resident_mb
from tests.support.programs import ROOT

LAYERS, SIZE = 600, 160
WEIGHTS_MB = LAYERS * SIZE * SIZE * 4 / 1e6
"""Weights of 100 KB each: small enough for the C library to keep them when they are freed."""


def write_deep(repository: Path) -> None:
    """``deep``: Y = X times many matrices, WEIGHTS_MB of them."""
    dice = np.random.default_rng(0)
    weights = [dice.random((SIZE, SIZE), np.float32).tobytes() for _ in range(LAYERS)]
    constants = [helper.make_tensor(f"W{layer}", 1, [SIZE, SIZE], content, raw=True) for layer, content in enumerate(weights)]
    names = ["X", *(f"H{layer}" for layer in range(1, LAYERS)), "Y"]
    nodes = [helper.make_node("MatMul", [names[layer], f"W{layer}"], [names[layer + 1]]) for layer in range(LAYERS)]
    shape = (Datatype.FP32, ("batch", SIZE))
    fixtures.write_onnx(repository, "deep", fixtures.onnx_model(nodes, {"X": shape}, {"Y": shape}, constants))


def test_unload_gives_memory_back(tmp_path: Path) -> None:
    """In one of a few processes: in about one of eight something small that stays keeps the C library from giving back what lies around."""
    write_deep(tmp_path)
    assert any(_left_mb(tmp_path) < 0.2 * WEIGHTS_MB for _ in range(4))


def _left_mb(repository: Path) -> float:
    command = [sys.executable, "-m", "tests.support.memory_of_a_model", str(repository), "deep"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True)
    loaded, left = map(float, finished.stdout.split())
    assert loaded > 0.8 * WEIGHTS_MB
    return left


async def test_what_the_c_library_keeps_goes_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [library.malloc(64 << 10) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 64 << 10)
    above = library.malloc(64)
    full = resident_mb()
    for block in blocks:
        library.free(block)
    assert full - resident_mb() < 20, "what lies below something that is in use is kept"
    memory = FreedMemory()
    await memory.give_back()
    await memory.close()
    assert full - resident_mb() > 50
    library.free(above)


async def test_not_more_often_than_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: queue.SimpleQueue[None] = queue.SimpleQueue()
    monkeypatch.setattr(freed_memory, "trim", lambda: trims.put(None))
    monkeypatch.setattr(freed_memory, "_PAUSE_S", 0.05)
    memory = FreedMemory()
    for _ in range(10):
        await memory.give_back()
    assert trims.qsize() == 1
    trims.get()
    await asyncio.to_thread(trims.get)
    await memory.close()
    assert trims.empty()
