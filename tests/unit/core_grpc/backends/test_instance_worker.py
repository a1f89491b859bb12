"""An instance lives on one thread, and what happens there comes back."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Mapping

import numpy as np
import pytest

from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.errors import BackendFailed
from core_grpc.types import Array


class ThreadNotingInstance:
    """Remembers the threads it was used on."""

    def __init__(self) -> None:
        self.threads = [threading.current_thread()]

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.threads.append(threading.current_thread())
        return inputs

    def close(self) -> None:
        self.threads.append(threading.current_thread())


async def test_created_used_and_closed_on_one_named_thread() -> None:
    made: list[ThreadNotingInstance] = []

    def create() -> ThreadNotingInstance:
        made.append(ThreadNotingInstance())
        return made[0]

    worker = await InstanceWorker.start("m/1/0", create)
    inputs = {"X": np.zeros(3)}
    assert await worker.run(lambda instance: instance.execute(inputs)) is inputs
    await worker.close()
    await worker.close()
    assert len(made[0].threads) == 3
    assert {thread.name for thread in made[0].threads} == {"m/1/0"}
    assert len(set(made[0].threads)) == 1
    made[0].threads[0].join(5)
    assert not made[0].threads[0].is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        worker.run(lambda instance: instance)


async def test_failures_come_back_and_the_thread_goes_on() -> None:
    worker = await InstanceWorker.start("w", ThreadNotingInstance)

    def fail(_instance: object) -> None:
        raise BackendFailed("no")

    with pytest.raises(BackendFailed, match="no"):
        await worker.run(fail)
    assert await worker.run(lambda _instance: 5) == 5
    await worker.close()


async def test_instance_that_cannot_be_created() -> None:
    def create() -> ThreadNotingInstance:
        raise BackendFailed("no memory")

    before = threading.active_count()
    with pytest.raises(BackendFailed, match="no memory"):
        await InstanceWorker.start("w", create)
    async with asyncio.timeout(5):
        while threading.active_count() > before:  # noqa: ASYNC110 (a thread ends without an event)
            await asyncio.sleep(0.001)


async def test_caller_who_left_does_not_disturb() -> None:
    worker = await InstanceWorker.start("w", ThreadNotingInstance)
    go = threading.Event()
    left = worker.run(lambda _instance: go.wait(10))
    after = worker.run(lambda _instance: 7)
    left.cancel()
    go.set()
    assert await after == 7
    await worker.close()


async def test_tensors_of_the_last_run_are_not_kept() -> None:
    worker = await InstanceWorker.start("w", ThreadNotingInstance)
    array = np.zeros(10)
    gone = weakref.ref(array)
    inputs = {"X": array}
    await worker.run(lambda instance, given=inputs: instance.execute(given))  # type: ignore[misc]
    del array, inputs
    async with asyncio.timeout(5):
        while gone() is not None:
            gc.collect()
            await asyncio.sleep(0.001)
    await worker.close()
