"""The models of these measurements, served in this process and run by bare ONNX Runtime."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from core_grpc.models.model import Model
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.server import DEMO_REPOSITORY
from core_grpc.settings import ModelsSettings
from core_grpc.types import Array

HERE = Path(__file__).resolve().parent.parent
Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class Workload:
    """A model file and what is asked of it, one row at a time."""

    file: Path
    row: Callable[[int], Inputs]
    """The inputs of one row, from a number."""


def _image(seed: int) -> Inputs:
    return {"input": np.random.default_rng(seed).random((1, 3, 224, 224), np.float32)}


def _decode_step(seed: int, past: int = 63) -> Inputs:
    """One step of a sequence that is ``past`` symbols long."""
    random = np.random.default_rng(seed)
    state = {
        f"past_key_values.{layer}.{kind}": random.random((1, 4, past, 32), np.float32) for layer in range(4) for kind in ("key", "value")
    }
    return {
        "input_ids": np.full((1, 1), seed % 90, np.int64),
        "attention_mask": np.ones((1, past + 1), np.int64),
        "position_ids": np.full((1, 1), past, np.int64),
        **state,
    }


CLASSIFIER = Workload(DEMO_REPOSITORY / "efficientnet_lite0" / "1" / "model.onnx", _image)
DECODE = Workload(HERE / "models" / "tinygpt_char.onnx", _decode_step)


@asynccontextmanager
async def served(configs: Mapping[str, tuple[Workload, str]], settings: ModelsSettings | None = None) -> AsyncIterator[Registry]:
    """Models by name, each a workload's file with a model.toml."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (workload, config) in configs.items():
            directory = Path(folder) / name / "1"
            directory.mkdir(parents=True)
            shutil.copy(workload.file, directory / "model.onnx")
            (directory.parent / "model.toml").write_text(config, encoding="utf-8")
        registry = Registry()
        control = RepositoryControl(Path(folder), settings or ModelsSettings(), registry, 5.0)
        await control.load_all()
        try:
            yield registry
        finally:
            await control.close()


def bare_session(workload: Workload) -> Any:
    """ONNX Runtime as it is by default."""
    return onnxruntime.InferenceSession(str(workload.file), providers=["CPUExecutionProvider"])


def bare_rows_per_s(session: Any, workload: Workload, batch: int, seconds: float) -> float:
    """Rows that the engine alone does in a second, in batches of one size that lie ready."""
    rows = [workload.row(seed) for seed in range(batch)]
    feed = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    session.run(None, feed)
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        session.run(None, feed)
        done += batch
    return done / spent


@dataclass(frozen=True)
class Load:
    """What callers in a closed loop saw."""

    rows_per_s: float
    p50_ms: float
    p99_ms: float


async def closed_loop(model: Model, workload: Workload, callers: int, seconds: float) -> Load:
    """Callers that each ask for one row, again and again."""
    times: list[float] = []
    ends = time.perf_counter() + seconds

    async def call(number: int) -> None:
        inputs = workload.row(number)
        while (began := time.perf_counter()) < ends:
            await model.infer(inputs, 1)
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(callers)))
    spent = time.perf_counter() - began
    return Load(len(times) / spent, float(np.percentile(times, 50)) * 1e3, float(np.percentile(times, 99)) * 1e3)
