"""Requests of more rows than a batch takes, run in parts (``split_large_requests``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from core_grpc.scheduler.dispatcher import Execution
from core_grpc.types import Array, InferRequest

Infer: TypeAlias = Callable[[Mapping[str, Array], int, InferRequest | None], Coroutine[Any, Any, Execution]]


async def infer_in_parts(  # noqa: PLR0917 (one caller)
    infer: Infer, inputs: Mapping[str, Array], rows: int, part_rows: int, most_at_once: int, request: InferRequest | None
) -> Execution:
    """The answer to the whole request: its parts of ``part_rows`` rows are run, ``most_at_once`` at a time, so that others get their turn.

    When one part fails, the others leave the queue and the request fails with it: there are no partial answers. Its compute time is that
    of all parts, its time in the queue that of the first.

    Raises:
        as ``Model.infer``.
    """
    slots = asyncio.Semaphore(most_at_once)

    async def run(start: int) -> Execution:
        async with slots:
            part = {name: array[start : start + part_rows] for name, array in inputs.items()}
            return await infer(part, min(part_rows, rows - start), request)

    tasks = [asyncio.create_task(run(start)) for start in range(0, rows, part_rows)]
    try:
        executions = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        # What was cancelled has left the queue when this returns.
        await asyncio.gather(*tasks, return_exceptions=True)
    outputs = await asyncio.to_thread(_joined, [execution.outputs for execution in executions])
    return Execution(
        outputs,
        executions[0].queue_s,
        sum(execution.compute_s for execution in executions),
        max(execution.batch_rows for execution in executions),
    )


def _joined(parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
