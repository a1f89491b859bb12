"""A program of its own for one measurement, since what a process freed before decides what it gives back.

``python -m tests.support.memory_of_a_model REPOSITORY MODEL`` loads the models, unloads one, and prints how many MB they took and left.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from core_grpc.models import freed_memory
from tests.support.serving import eventually, serving


def resident_mb() -> float:
    """Memory of this process, in millions of bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(repository: Path, model: str) -> tuple[float, float]:
    """What the loaded models take, and what is left of it once ``model`` is unloaded."""
    async with serving(repository):
        """What the engine keeps for the process is there from now on."""
    freed_memory.trim()
    before = resident_mb()
    async with serving(repository) as served:
        loaded = resident_mb() - before
        await served.control.unload(model)
        with suppress(TimeoutError):
            # It is given back a moment after the unload has returned.
            await eventually(lambda: resident_mb() - before < loaded / 5, 10)
        return loaded, resident_mb() - before


if __name__ == "__main__":
    # Freed memory is given back at once, and not with what else is freed in the next seconds.
    freed_memory._PAUSE_S = 0.0
    print(*asyncio.run(measure(Path(sys.argv[1]), sys.argv[2])))
