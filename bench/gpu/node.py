"""A node's data plane in this process, for callers that are in it too, and processes for those who are not."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvloop
from numpy.typing import NDArray

from core_grpc.data_plane import DataPlane
from core_grpc.lifecycle import SERVER_STEPS, Lifecycle, ModelState, ServerState
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.observability.tracing import Tracer
from core_grpc.settings import NodeSettings
from core_grpc.types import Datatype, InferRequest, Tensor

Result = TypeVar("Result")


@asynccontextmanager
async def served(repository: Path) -> AsyncIterator[tuple[DataPlane, Registry]]:
    """The repository, loaded, as a node has it.

    Raises:
        RuntimeError: a model could not be loaded.
    """
    settings, registry = NodeSettings(), Registry()
    sys.setswitchinterval(settings.threads.gil_switch_interval_s)
    control = RepositoryControl(repository, settings.models, registry, grace_s=10.0)
    lifecycle = Lifecycle(SERVER_STEPS, ServerState.STARTING)
    await control.load_all()
    failed = [entry for entry in registry.entries() if entry.state is not ModelState.READY]
    try:
        if failed:
            raise RuntimeError(f"{failed[0].name}: {failed[0].reason}")
        lifecycle.to(ServerState.SERVING)
        with ThreadPoolExecutor(2) as pool:
            yield DataPlane(registry, control, lifecycle, settings, pool, Tracer("", pool)), registry
    finally:
        await control.close()


def run(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """The coroutine's result, on the event loop that nodes have."""
    return uvloop.run(main())


def request(model: str, **inputs: NDArray[Any]) -> InferRequest:
    """One inference."""
    by_dtype = {datatype.dtype: datatype for datatype in Datatype}
    return InferRequest(model, "", {name: Tensor(by_dtype[array.dtype], array) for name, array in inputs.items()})


class Load:
    """Callers that ask again as soon as they have their answer, for as long as it runs."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.rows = 0
        self.wrong = 0
        self.elapsed_s = 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows answered in a second."""
        return self.rows / self.elapsed_s

    def percentile_ms(self, share: float) -> float:
        """Latency of a request, in ms."""
        return float(np.percentile(self.latencies_s, share * 100)) * 1000

    async def press(self, callers: int, seconds: float, ask: Callable[[int, int], Coroutine[Any, Any, tuple[int, bool]]]) -> Load:
        """Runs ``ask(caller, turn)``, which tells the rows and whether they were right, from so many callers."""
        began = time.perf_counter()
        ends = began + seconds
        await asyncio.gather(*(self._call(caller, ends, ask) for caller in range(callers)))
        self.elapsed_s = time.perf_counter() - began
        return self

    async def _call(self, caller: int, ends: float, ask: Callable[[int, int], Coroutine[Any, Any, tuple[int, bool]]]) -> None:
        turn = 0
        while (began := time.perf_counter()) < ends:
            rows, is_right = await ask(caller, turn)
            self.latencies_s.append(time.perf_counter() - began)
            self.rows += rows
            self.wrong += not is_right
            turn += 1
