"""Runs one step of a pipeline on the model that answers to its name at that moment, through that model's own scheduler.

A step's request is held against the model as a caller's is, waits in the model's queue, shares batches there with whatever else comes, and
is counted by the model. It carries the id, parameters and deadline of the request that the pipeline answers.

Where the pipeline has no batch dimension and the step's model has one, the rows are those of the tensors: any number. More than the model
takes at once go as several requests; of none, nothing runs, and the outputs have no rows either.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence

import numpy as np

from core_grpc.errors import GatewayError, ModelNotReady, NotFound
from core_grpc.models.model import Model
from core_grpc.models.registry import Registry
from core_grpc.models.statistics import failure_reason
from core_grpc.pipelines.executor import together
from core_grpc.pipelines.plan import Plan
from core_grpc.request_checks import check_inputs
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec, Tensor, datatype_from_dtype


class StepTimes:
    """When the steps of one request computed."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []

    def add(self, ended: float, compute_s: float) -> None:
        """A step ended then that had computed for so long."""
        self._intervals.append((ended - compute_s, ended))

    def busy_s(self) -> float:
        """Seconds in which at least one step computed."""
        if len(self._intervals) == 1:
            return self._intervals[0][1] - self._intervals[0][0]
        total, until = 0.0, 0.0
        for begin, end in sorted(self._intervals):
            total += max(end - max(begin, until), 0.0)
            until = max(until, end)
        return total


class PipelineSteps:
    """The steps of one pipeline. Belongs to the event loop."""

    def __init__(self, registry: Registry, name: str, plan: Plan, *, has_batch_dimension: bool) -> None:
        self._registry = registry
        self._name = name
        self._plan = plan
        self._has_batch_dimension = has_batch_dimension

    def find(self, position: int) -> Model:
        """The model of a step.

        Raises:
            ModelNotReady: it does not answer now; the text names step and model.
        """
        step = self._plan.steps[position]
        try:
            return self._registry.find(step.model, step.version)
        except (NotFound, ModelNotReady) as error:
            raise ModelNotReady(f"{self._plan.titled(position)}: {error.message}") from None

    async def run(self, position: int, inputs: Mapping[str, Array], request: InferRequest, times: StepTimes) -> Mapping[str, Array]:
        """The outputs of a step's model for ``inputs``, by their names there; the work of ``request``.

        Raises:
            GatewayError: as the model's ``infer``, the text naming the step.
        """
        model = self.find(position)
        try:
            if model.spec.max_batch_size and not self._has_batch_dimension:
                return await self._rows(model, inputs, request, times)
            return (await self._one(model, inputs, request, times)).outputs
        except GatewayError as error:
            raise _named(error, self._plan.titled(position)) from error

    async def _rows(self, model: Model, inputs: Mapping[str, Array], request: InferRequest, times: StepTimes) -> Mapping[str, Array]:
        rows, most = _rows(inputs), model.spec.max_batch_size
        if rows == 0:
            return _no_rows(model.spec)
        if rows <= most:
            return (await self._one(model, inputs, request, times)).outputs
        cuts = [slice(start, start + most) for start in range(0, rows, most)]
        parts = [{name: array[cut] for name, array in inputs.items()} for cut in cuts]
        executions = await together([self._one(model, part, request, times) for part in parts])
        # Many rows: the copy must not hold up the event loop.
        return await asyncio.to_thread(_joined, [execution.outputs for execution in executions])

    async def _one(self, model: Model, inputs: Mapping[str, Array], request: InferRequest, times: StepTimes) -> Execution:
        began = model.last_used = time.monotonic()
        model.users += 1
        try:
            execution = await self._infer(model, inputs, request)
        except BaseException as error:
            model.statistics.failed(time.monotonic() - began, failure_reason(error))
            raise
        finally:
            model.release()
        times.add(time.monotonic(), execution.compute_s)
        return execution

    async def _infer(self, model: Model, inputs: Mapping[str, Array], request: InferRequest) -> Execution:
        tensors = {name: Tensor(_datatype(array), array) for name, array in inputs.items()}
        rows = check_inputs(model.spec, tensors)
        spec = model.spec
        of_step = request._replace(model_name=spec.name, model_version=spec.version, inputs=tensors, outputs=(), pipeline=self._name)
        execution = await model.infer(inputs, rows, of_step)
        model.statistics.answered(rows, 0.0, execution)
        return execution


def _named(error: GatewayError, title: str) -> GatewayError:
    """The error with the step in its text; its class, and with that its status, stays."""
    named = copy.copy(error)
    GatewayError.__init__(named, f"{title}: {error.message}")
    return named


def _datatype(array: Array) -> Datatype:
    return Datatype.BYTES if array.dtype.hasobject else datatype_from_dtype(array.dtype)


def _rows(inputs: Mapping[str, Array]) -> int:
    """The rows of the inputs; 1 where they differ or there are none, which the model's own check refuses by name."""
    counts = {array.shape[0] if array.ndim else -1 for array in inputs.values()}
    rows = counts.pop() if len(counts) == 1 else 1
    return rows if rows >= 0 else 1


def _no_rows(spec: ModelSpec) -> Mapping[str, Array]:
    return {item.name: np.empty((0, *(max(size, 0) for size in item.shape[1:])), item.datatype.dtype) for item in spec.outputs}


def _joined(parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {name: np.concatenate([part[name] for part in parts], casting="no") for name in parts[0]}
