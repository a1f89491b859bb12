"""Batching against the engine alone, and against no batching."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from rich.table import Table

from bench.scheduling.models import CLASSIFIER, DECODE, Load, Workload, bare_rows_per_s, bare_session, closed_loop, served

CALLERS = 32
BATCHES = (1, 2, 4, 8, 16, 32)
WORKLOADS: Mapping[str, Workload] = {"classifier, 600 KB images": CLASSIFIER, "language model, one step": DECODE}


async def against_the_engine(scale: float) -> Table:
    """Rows per second with 32 callers, of those of bare ONNX Runtime at whichever batch size it is best at; three rounds, in turn."""
    table = Table("model", "engine alone, rows/s (its best batch)", "scheduler, 32 callers, rows/s", "scheduler / engine")
    for name, workload in WORKLOADS.items():
        session = bare_session(workload)
        by_batch = {batch: bare_rows_per_s(session, workload, batch, 1.5 * scale) for batch in BATCHES}
        best = max(by_batch, key=by_batch.__getitem__)
        alone: list[float] = []
        ours: list[float] = []
        async with served({"m": (workload, f"max_batch_size = {best}\n")}) as registry:
            for _ in range(3):
                alone.append(bare_rows_per_s(session, workload, best, 4 * scale))
                ours.append((await closed_loop(registry.find("m"), workload, CALLERS, 4 * scale)).rows_per_s)
        ratio = statistics.median(ours) / statistics.median(alone)
        table.add_row(name, f"{statistics.median(alone):,.0f} ({best})", f"{statistics.median(ours):,.0f}", f"{ratio:.2f}")
    return table


async def against_no_batching(scale: float) -> Table:
    """The same model with max_batch_size 8 and 1, 32 callers; three rounds, in turn."""
    table = Table("model", "batch 1, rows/s (p50)", "batch 8, rows/s (p50)", "rows/s, 8 / 1", "p50, 8 / 1")
    for name, workload in WORKLOADS.items():
        loads: dict[str, list[Load]] = {"one": [], "eight": []}
        configs = {"one": (workload, "max_batch_size = 1\n"), "eight": (workload, "max_batch_size = 8\n")}
        async with served(configs) as registry:
            for _ in range(3):
                for model, of_model in loads.items():
                    of_model.append(await closed_loop(registry.find(model), workload, CALLERS, 3 * scale))
        one, eight = (_median(of_model) for of_model in loads.values())
        row = [f"{load.rows_per_s:,.0f} ({load.p50_ms:.1f} ms)" for load in (one, eight)]
        table.add_row(name, *row, f"{eight.rows_per_s / one.rows_per_s:.2f}", f"{eight.p50_ms / one.p50_ms:.2f}")
    return table


def _median(loads: list[Load]) -> Load:
    return sorted(loads, key=lambda load: load.rows_per_s)[len(loads) // 2]
