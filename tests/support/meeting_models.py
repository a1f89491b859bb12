"""Models for tests of batches: those in which callers are sure to meet, and those that run for as long as a test wants.

A batch of the first leaves when it is full and not before (their callers wait for at most ``LONGEST_MS``), so as many callers as rows
share one, however slow the machine is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.models import write_addsub_i32, write_gather, write_identity, write_nobatch
from tests.support.python_models import write_python_model

MEETING_ROWS = 8
LONGEST_MS = 60_000

GATED = '''
    """Answers with X once there is a file open-<X>; leaves a file for each request that it begins."""
    import time

    class Model:
        def initialise(self, context):
            self.directory = context.directory

        def execute(self, requests):
            for request in requests:
                (self.directory / f"began-{request.id}").touch()
                while not (self.directory / f"open-{int(request.inputs['X'][0, 0])}").exists():
                    time.sleep(0.005)
            return [{"Y": request.inputs["X"]} for request in requests]
'''
GATED_TENSORS: dict[str, Any] = {"inputs": {"X": ("FP32", [-1, 1])}, "outputs": {"Y": ("FP32", [-1, 1])}}


def meeting(rows: int = MEETING_ROWS) -> str:
    """The start of a model.toml."""
    return f"max_batch_size = {rows}\n[warmup]\ncount = 0\n[batching]\nmax_queue_delay_ms = {LONGEST_MS}\n"


def write_meeting_models(repository: Path) -> None:
    """``meet_fp32``, ``meet_bytes``, ``meet_addsub``, ``gather`` (8 rows) and ``nobatch`` (3 rows)."""
    write_identity(repository, "meet_fp32", {"X": ("FP32", [-1, -1])}, meeting())
    write_identity(repository, "meet_bytes", {"X": ("BYTES", [-1, -1])}, meeting())
    write_addsub_i32(repository, "meet_addsub", meeting())
    write_gather(repository, meeting())
    write_nobatch(repository, meeting(3))


class Gate:
    """A gated model: whom it has begun, and until when they run."""

    def __init__(self, repository: Path, name: str, instances: int, queue_rows: int) -> None:
        self.name = name
        config = f"max_batch_size = 1\n[instances]\ncount = {instances}\n[queue]\nmax_rows = {queue_rows}\n"
        self._directory = write_python_model(repository, name, GATED, **GATED_TENSORS, config=config)

    def begun(self) -> set[str]:
        """Ids of the requests that the model has begun."""
        return {file.name.removeprefix("began-") for file in self._directory.glob("began-*")}

    async def has_begun(self, count: int, of: str) -> set[str]:
        """Waits until it has begun so many requests whose ids start with ``of``; they are all of them."""
        while len(found := {request_id for request_id in self.begun() if request_id.startswith(of)}) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # The model is in another process: nobody here is told.
        return found

    def open(self, number: int) -> None:
        """Lets requests with this value go."""
        (self._directory / f"open-{number}").touch()
