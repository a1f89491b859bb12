"""A model that is made of other models: it hands a request's tensors from step to step, and has no engine of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from typing_extensions import override

from core_grpc.errors import ModelNotReady, QueueFull
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model import Model
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.models.pipeline_steps import PipelineSteps, StepTimes
from core_grpc.pipelines.executor import execute, work_for
from core_grpc.pipelines.plan import Plan
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.types import Array, InferRequest


class PipelineModel(Model):
    """See the module's text.

    It has no queue: requests wait in those of the steps' models. ``max_rows`` bounds those that are under way, tensors between steps
    included.
    """

    def __init__(self, declared: DeclaredModel, lifecycle: Lifecycle[ModelState], plan: Plan, steps: PipelineSteps, max_rows: int) -> None:
        super().__init__(declared, lifecycle)
        self._plan = plan
        self._whole = work_for(plan, plan.outputs)
        self._steps = steps
        self._max_rows = max_rows
        self._rows = 0
        """Of the requests under way."""
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        return f"<PipelineModel {self.spec.name} {self.spec.version} {self.lifecycle!r} {self._rows} rows under way>"

    @override
    async def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Execution:
        """See ``Model.infer``. Of the steps, those run that the request's outputs need.

        ``queue_s`` is the time in which no step computed, ``compute_s`` that in which one or more did.
        """
        counted = rows if self.spec.max_batch_size else 1
        if self._is_closed:
            raise ModelNotReady("the model is being unloaded")
        if self._rows + counted > self._max_rows:
            raise QueueFull(f"model '{self.spec.name}' has {self._rows} rows under way: the limit is [queue] max_rows = {self._max_rows}")
        self._rows += counted
        self._idle.clear()
        try:
            return await self._executed(inputs, counted, request or InferRequest(self.spec.name, self.spec.version, {}))
        finally:
            self._rows -= counted
            if not self._rows:
                self._idle.set()

    async def _executed(self, inputs: Mapping[str, Array], rows: int, request: InferRequest) -> Execution:
        began, times = time.monotonic(), StepTimes()
        wanted = tuple(output.name for output in request.outputs)
        work = work_for(self._plan, wanted) if wanted else self._whole

        def run(position: int, taken: Mapping[str, Array]) -> Coroutine[Any, Any, Mapping[str, Array]]:
            if self._is_closed:
                raise ModelNotReady("the model is being unloaded")
            return self._steps.run(position, taken, request, times)

        outputs = await execute(self._plan, work, inputs, run)
        compute_s = times.busy_s()
        self.statistics.executed(rows, compute_s)
        return Execution(outputs, max(time.monotonic() - began - compute_s, 0.0), compute_s, rows)

    @override
    def check_ready(self) -> None:
        for position in range(len(self._plan.steps)):
            self._steps.find(position).check_ready()

    @override
    async def drain(self) -> None:
        await self._idle.wait()

    @override
    async def _close(self) -> None:
        """Steps that run are finished; the next ones are not begun."""
        self._is_closed = True
        await self._idle.wait()
