"""An engine that the tests hold in their hands: when a batch ends is decided there, not by a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from core_grpc.errors import BackendFailed
from core_grpc.scheduler.batch import parts_of
from core_grpc.scheduler.batch_buffers import BatchBuffers
from core_grpc.scheduler.dispatcher import BatchResult, Member


class HeldEngine:
    """Answers with twice its input once it is let go. A value of 99 fails; one instance, as a model's would."""

    def __init__(self, *, is_held: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.ended: list[list[int]] = []
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.failure: Exception = BackendFailed("99 is not served")
        if not is_held:
            self.go.set()

    async def execute(self, batch: Sequence[Member]) -> BatchResult:
        values = BatchBuffers().stack([member.inputs for member in batch])["X"]
        self.batches.append(values[:, 0].tolist())
        self.started.set()
        await self.go.wait()
        self.ended.append(self.batches[-1])
        if 99 in values:
            raise self.failure
        return BatchResult(parts_of({"Y": values * 2}, [member.rows for member in batch]), 0.25)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.001)
