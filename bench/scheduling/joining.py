"""What putting a batch together costs: into fresh memory, and into memory that an instance keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from bench.scheduling.models import CLASSIFIER, DECODE, Inputs
from core_grpc.scheduler.batch_buffers import BatchBuffers

ROWS = 8


def measure(scale: float) -> Table:
    """Both ways, medians. The C library hands freed memory back to the system until something larger was freed once; both are shown."""
    table = Table("8 rows of", "fresh memory, µs", "kept memory, µs", "fresh / kept")
    state, image = "a language model's state, 259 KB in 11 tensors", "an image, 600 KB"
    for name, workload in ((state, DECODE), (image, CLASSIFIER), (f"{state}, after a larger block was freed", DECODE)):
        rows = [workload.row(seed) for seed in range(ROWS)]
        rounds = max(int(500 * scale), 5)
        fresh = np.median([_seconds(_joined_fresh, rows) for _ in range(rounds)]) * 1e6
        buffers = BatchBuffers()
        kept = np.median([_seconds(buffers.stack, rows) for _ in range(rounds)]) * 1e6
        table.add_row(name, f"{fresh:,.0f}", f"{kept:,.0f}", f"{fresh / kept:.1f}")
    return table


def _joined_fresh(rows: Sequence[Inputs]) -> Inputs:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _seconds(join: Callable[[Sequence[Inputs]], Inputs], rows: Sequence[Inputs]) -> float:
    began = time.perf_counter()
    join(rows)
    return time.perf_counter() - began
