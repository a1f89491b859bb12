"""A model that answers each request once: its instances on their threads, and the dispatcher that feeds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from core_grpc.backends.base import LoadedModel, LoadedRequestModel, RequestInstance
from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model import Model
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.scheduler.dispatcher import BatchResult, Dispatcher, Execute, Execution, Member
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
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
    ) -> None:
        super().__init__(declared, lifecycle)
        self._loaded = loaded
        self._workers = workers
        self._dispatcher = Dispatcher(limits, [_execute_on(worker) for worker in workers], self.statistics.executed)
        self._group_of = _group_of(self.spec)
        self._nbytes_of = _nbytes_with_bytes if any(item.datatype is Datatype.BYTES for item in self.spec.inputs) else _nbytes

    def __repr__(self) -> str:
        return f"<BatchedModel {self.spec.name} {self.spec.version} {self.lifecycle!r} {self._dispatcher!r}>"

    @override
    def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Coroutine[Any, Any, Execution]:
        counted = rows if self.spec.max_batch_size else 1
        deadline = _queue_deadline(request) if request else None
        return self._dispatcher.infer(inputs, counted, self._nbytes_of(inputs), self._group_of(inputs), deadline, request)

    @override
    async def drain(self) -> None:
        await self._dispatcher.drain()

    @override
    async def _close(self) -> None:
        await self._dispatcher.close()
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._loaded.close()


def _queue_deadline(request: InferRequest) -> float | None:
    """When the request's wait ends at the latest: its deadline, or its parameter ``timeout`` from now. Once it runs, it runs."""
    timeout_us = request.parameters.get("timeout", 0) if request.parameters else 0
    if not isinstance(timeout_us, int) or not timeout_us:
        return request.deadline
    ends = time.monotonic() + timeout_us / 1e6
    return ends if request.deadline is None else min(ends, request.deadline)


def _execute_on(worker: InstanceWorker[RequestInstance]) -> Execute:
    def execute(batch: Sequence[Member]) -> asyncio.Future[BatchResult]:
        return worker.run(lambda instance: _run_batch(instance, batch))

    return execute


def _run_batch(instance: RequestInstance, batch: Sequence[Member]) -> BatchResult:
    began = time.perf_counter()
    parts = instance.execute_requests(batch)
    return BatchResult(parts, time.perf_counter() - began)


def _group_of(spec: ModelSpec) -> Callable[[Mapping[str, Array]], Hashable]:
    """Which requests may share a batch: those with the same inputs, of the same shapes beyond the batch dimension.

    The request was held against the spec, so where the spec leaves nothing open all requests are alike.
    """
    names = [item.name for item in spec.inputs]
    if not spec.max_batch_size or all(-1 not in item.shape[1:] and not item.optional for item in spec.inputs):
        return lambda _inputs: None
    return lambda inputs: tuple(inputs[name].shape[1:] if name in inputs else None for name in names)


def _nbytes(inputs: Mapping[str, Array]) -> int:
    size = 0
    for array in inputs.values():
        size += array.nbytes
    return size


def _nbytes_with_bytes(inputs: Mapping[str, Array]) -> int:
    """As above, with the content of BYTES elements, whose arrays only hold references."""
    return _nbytes(inputs) + sum(sum(map(len, array.reshape(-1).tolist())) for array in inputs.values() if array.dtype.hasobject)
