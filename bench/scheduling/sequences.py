"""Streams of speech: their frames batched together, the state of each kept by the server, against one at a time."""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np
from rich.table import Table

from bench.scheduling.models import HERE, Workload, served
from core_grpc.models.model import Model
from core_grpc.types import InferRequest

STREAMS = 64
SILERO = Workload(
    HERE.parent / "tests" / "data" / "silero_vad_16k_batch.onnx",
    lambda seed: {"input": np.random.default_rng(seed).standard_normal((1, 576)).astype(np.float32)},
)
STATE = '[queue]\nmax_rows = 4096\n[sequence]\nmax_idle_ms = 60000\n[[sequence.state]]\ninput = "state"\noutput = "stateN"\n'


async def listened(model: Model, frames: int, first_id: int) -> tuple[float, float]:
    """All streams at once, each frame sent when the one before is answered: frames per second, and the median wait in ms."""
    times: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_stream(model, frames, first_id + number, times) for number in range(STREAMS)))
    return STREAMS * frames / (time.perf_counter() - began), float(np.median(times)) * 1e3


async def _stream(model: Model, frames: int, sequence_id: int, times: list[float]) -> None:
    inputs = SILERO.row(sequence_id)
    for index in range(frames):
        parameters = {"sequence_id": sequence_id, "sequence_start": index == 0, "sequence_end": index == frames - 1}
        began = time.perf_counter()
        await model.infer(inputs, 1, InferRequest("m", "", {}, parameters=parameters))
        times.append(time.perf_counter() - began)


async def measure(scale: float) -> Table:
    """max_batch_size 64 and 1, in turn, three rounds."""
    frames = max(int(100 * scale), 4)
    seen: dict[str, list[tuple[float, float]]] = {"one": [], "many": []}
    configs = {"one": (SILERO, "max_batch_size = 1\n" + STATE), "many": (SILERO, f"max_batch_size = {STREAMS}\n" + STATE)}
    async with served(configs) as registry:
        for turn in range(3):
            for index, (name, of_model) in enumerate(seen.items()):
                of_model.append(await listened(registry.find(name), frames, 1 + (2 * turn + index) * STREAMS))
        batches = registry.find("many").statistics.batches
        mean_rows = sum(rows * duration.count for rows, duration in batches.items()) / sum(duration.count for duration in batches.values())
    one, many = (sorted(of_model)[1] for of_model in seen.values())
    table = Table(f"Silero, {STREAMS} streams", "frames/s", "p50 of a frame")
    table.add_row("batch 1", f"{one[0]:,.0f}", f"{one[1]:.1f} ms")
    table.add_row(f"batch {STREAMS} (in the mean {mean_rows:.0f} rows)", f"{many[0]:,.0f}", f"{many[1]:.1f} ms")
    table.add_row("ratio", f"{statistics.median(m[0] / o[0] for o, m in zip(*seen.values(), strict=True)):.2f}", f"{many[1] / one[1]:.2f}")
    return table
