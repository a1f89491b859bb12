"""A model that answers each request once: its instances on their threads, and the dispatcher that feeds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from core_grpc.backends.base import LoadedModel, LoadedRequestModel, RequestInstance
from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model import Model
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.models.request_groups import group_of
from core_grpc.models.request_parts import infer_in_parts
from core_grpc.scheduler.dispatcher import BatchResult, Dispatcher, Execute, Execution, Member, QueueDepth
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from core_grpc.scheduler.grants import Gate
from core_grpc.scheduler.policy import queue_deadline
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec


class BatchedModel(Model):
    """See the module's text."""

    def __init__(
        self,
        declared: DeclaredModel,
        lifecycle: Lifecycle[ModelState],
        loaded: LoadedModel | LoadedRequestModel,
        workers: Sequence[InstanceWorker[RequestInstance]],
        limits: BatchingLimits,
        *,
        gates: Sequence[Gate],
    ) -> None:
        super().__init__(declared, lifecycle)
        self._loaded = loaded
        self._workers = workers
        executes = [_execute_on(worker) for worker in workers]
        ordered = declared.config.batching.preserve_ordering
        counts = self.statistics
        self._dispatcher = Dispatcher(
            limits, executes, counts.executed, on_failed=counts.run_failed, preserve_ordering=ordered, gates=gates
        )
        self._most_parts_at_once = 2 * len(workers)
        batching, policies = declared.config.batching, declared.config.queue.policies
        self._policies = None if policies.is_plain else policies
        self._group_of = group_of(self.spec, declared.form, batching.match_parameters)
        self._nbytes_of = nbytes_of(self.spec)

    def __repr__(self) -> str:
        return f"<BatchedModel {self.spec.name} {self.spec.version} {self.lifecycle!r} {self._dispatcher!r}>"

    @override
    def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Coroutine[Any, Any, Execution]:
        most = self.spec.max_batch_size
        if not most:
            rows = 1
        elif rows > most:
            # Not self.infer: a response cache in front of it keeps the whole answer, not the parts.
            return infer_in_parts(partial(BatchedModel.infer, self), inputs, rows, most, self._most_parts_at_once, request)
        group, nbytes = self._group_of(inputs, request), self._nbytes_of(inputs)
        if request is None:
            return self._dispatcher.infer(inputs, rows, nbytes, group, None, None)
        parameters, deadline = request.parameters, request.deadline
        if self._policies is None:
            if parameters:
                deadline = queue_deadline(parameters, deadline, time.monotonic())
            return self._dispatcher.infer(inputs, rows, nbytes, group, deadline, request)
        terms = self._policies.terms(parameters, deadline, time.monotonic())
        return self._dispatcher.infer(inputs, rows, nbytes, group, terms.deadline, request, terms.level, terms.delay_at)

    @property
    @override
    def queue_depth(self) -> QueueDepth:
        return self._dispatcher.depth

    @override
    async def drain(self) -> None:
        await self._dispatcher.drain()

    @override
    async def _close(self) -> None:
        await self._dispatcher.close()
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._loaded.close()


def _execute_on(worker: InstanceWorker[RequestInstance]) -> Execute:
    def execute(batch: Sequence[Member]) -> asyncio.Future[BatchResult]:
        return worker.run(lambda instance: _run_batch(instance, batch))

    return execute


def _run_batch(instance: RequestInstance, batch: Sequence[Member]) -> BatchResult:
    began = time.perf_counter()
    parts = instance.execute_requests(batch)
    return BatchResult(parts, time.perf_counter() - began)


def nbytes_of(spec: ModelSpec) -> Callable[[Mapping[str, Array]], int]:
    """What tells the size of a request's inputs, in bytes."""
    return _nbytes_with_bytes if any(item.datatype is Datatype.BYTES for item in spec.inputs) else _nbytes


def _nbytes(inputs: Mapping[str, Array]) -> int:
    size = 0
    for array in inputs.values():
        size += array.nbytes
    return size


def _nbytes_with_bytes(inputs: Mapping[str, Array]) -> int:
    """As above, with the content of BYTES elements, whose arrays only hold references."""
    return _nbytes(inputs) + sum(sum(map(len, array.reshape(-1).tolist())) for array in inputs.values() if array.dtype.hasobject)
