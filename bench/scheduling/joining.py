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
    """Both ways in turn, medians."""
    table = Table("8 rows of", "fresh memory, µs", "kept memory, µs", "fresh / kept")
    for name, workload in (("an image, 600 KB", CLASSIFIER), ("a language model's state, 259 KB in 11 tensors", DECODE)):
        rows = [workload.row(seed) for seed in range(ROWS)]
        buffers = BatchBuffers()
        fresh: list[float] = []
        kept: list[float] = []
        for _ in range(max(int(500 * scale), 5)):
            fresh.append(_seconds(_joined_fresh, rows))
            kept.append(_seconds(buffers.stack, rows))
        both = float(np.median(fresh)) * 1e6, float(np.median(kept)) * 1e6
        table.add_row(name, f"{both[0]:,.0f}", f"{both[1]:,.0f}", f"{both[0] / both[1]:.1f}")
    return table


def _joined_fresh(rows: Sequence[Inputs]) -> Inputs:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _seconds(join: Callable[[Sequence[Inputs]], Inputs], rows: Sequence[Inputs]) -> float:
    began = time.perf_counter()
    join(rows)
    return time.perf_counter() - began
