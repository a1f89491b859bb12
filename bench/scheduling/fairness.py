"""Two models on one machine, one of them asked for far more: what the other one gets."""

from __future__ import annotations

import asyncio
import statistics

from rich.table import Table

from bench.scheduling.models import CLASSIFIER, closed_loop, served

HOT_CALLERS = 32
CONFIG = "max_batch_size = 8\n[instances]\ncount = 2\n"


async def measure(scale: float) -> Table:
    """The quiet model's one caller alone and beside the hot model's 32; then both with 32. Three rounds, in turn."""
    alone: list[float] = []
    beside: list[float] = []
    shares: list[float] = []
    async with served({"hot": (CLASSIFIER, CONFIG), "quiet": (CLASSIFIER, CONFIG)}) as registry:
        hot, quiet = registry.find("hot"), registry.find("quiet")
        for _ in range(3):
            alone.append((await closed_loop(quiet, CLASSIFIER, 1, 3 * scale)).p50_ms)
            _, load = await asyncio.gather(
                closed_loop(hot, CLASSIFIER, HOT_CALLERS, 4 * scale), closed_loop(quiet, CLASSIFIER, 1, 4 * scale)
            )
            beside.append(load.p50_ms)
            both = await asyncio.gather(*(closed_loop(model, CLASSIFIER, HOT_CALLERS, 4 * scale) for model in (hot, quiet)))
            shares.append(both[1].rows_per_s / both[0].rows_per_s)
        batch_ms = hot.statistics.batches[8].ns / hot.statistics.batches[8].count / 1e6 if 8 in hot.statistics.batches else 0.0
    table = Table("two classifiers, 2 instances each", "")
    table.add_row("the quiet one, 1 caller, p50 alone", f"{statistics.median(alone):.1f} ms")
    table.add_row("beside 32 callers of the hot one, p50", f"{statistics.median(beside):.1f} ms")
    table.add_row("an execution of 8 rows of the hot one", f"{batch_ms:.1f} ms")
    table.add_row("both with 32 callers: rows of the one / of the other", f"{statistics.median(shares):.2f}")
    return table
