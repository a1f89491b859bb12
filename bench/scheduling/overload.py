"""Twice the load that the engine can carry: what the important requests see of it, and what becomes of the others."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field

import numpy as np
from rich.table import Table

from bench.scheduling.models import CLASSIFIER, closed_loop, served
from core_grpc.errors import QueueFull
from core_grpc.models.model import Model
from core_grpc.types import InferRequest

HIGH_SHARE = 0.2
"""Of the engine's capacity, asked for by important requests."""
OVERLOAD = 2.0
CONFIG = """\
max_batch_size = 1
[queue]
max_rows = 32
priority_levels = 2
"""


@dataclass
class Seen:
    """What came of the requests of one priority."""

    times: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def p99_ms(self) -> float:
        """Of those that were answered."""
        return float(np.percentile(self.times, 99)) * 1e3


async def arrivals(model: Model, rate: float, seconds: float, priority: int, seed: int) -> Seen:
    """Requests at random moments (a Poisson process), whether or not the ones before are answered."""
    random, seen, tasks = np.random.default_rng(seed), Seen(), []
    inputs = CLASSIFIER.row(seed)
    request = InferRequest("m", "", {}, parameters={"priority": priority})

    async def ask(began: float) -> None:
        try:
            await model.infer(inputs, 1, request)
        except QueueFull:
            seen.refused += 1
        else:
            seen.times.append(time.perf_counter() - began)

    due = time.perf_counter()
    ends = due + seconds
    while due < ends:
        due += random.exponential(1 / rate)
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        # From when it was due: a generator that is late must not hide that it waited.
        tasks.append(asyncio.create_task(ask(due)))
    await asyncio.gather(*tasks)
    return seen


async def measure(scale: float) -> Table:
    """Three rounds: the important ones alone, then with the others on top."""
    alone: list[float] = []
    loaded: list[float] = []
    shed = []
    async with served({"m": (CLASSIFIER, CONFIG)}) as registry:
        model = registry.find("m")
        capacity = (await closed_loop(model, CLASSIFIER, 4, 3 * scale)).rows_per_s
        high, low = capacity * HIGH_SHARE, capacity * (OVERLOAD - HIGH_SHARE)
        for seed in range(3):
            alone.append((await arrivals(model, high, 8 * scale, 1, seed)).p99_ms)
            important, others = await asyncio.gather(
                arrivals(model, high, 8 * scale, 1, seed), arrivals(model, low, 8 * scale, 2, seed + 10)
            )
            loaded.append(important.p99_ms)
            shed.append((important.refused, others.refused / (others.refused + len(others.times))))
    table = Table("classifier, 2 times its capacity", "")
    table.add_row("capacity, requests/s", f"{capacity:,.0f}")
    table.add_row("important ones, p99 alone", f"{statistics.median(alone):.1f} ms")
    table.add_row("important ones, p99 under overload", f"{statistics.median(loaded):.1f} ms")
    table.add_row("under overload / alone", f"{statistics.median(loaded) / statistics.median(alone):.2f}")
    table.add_row("important ones refused", str(sum(count for count, _ in shed)))
    table.add_row("others refused", f"{statistics.median(part for _, part in shed):.0%}")
    return table
