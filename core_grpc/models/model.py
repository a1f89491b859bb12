"""A model version that answers: its spec, its instances on their threads, and the dispatcher that feeds them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from core_grpc.backends import load_backend
from core_grpc.backends.base import LoadedModel, ModelInstance, ModelSource
from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model_spec import DeclaredModel, declare_model, declared_inputs
from core_grpc.models.repository import RepositoryEntry
from core_grpc.models.warmup import warm_up
from core_grpc.scheduler.batch import stack
from core_grpc.scheduler.dispatcher import BatchResult, Dispatcher, Execute, Execution, Member
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from core_grpc.settings import ModelsSettings
from core_grpc.types import Array, Datatype, ModelSpec

if TYPE_CHECKING:
    from core_grpc.processing.images import ImagePreprocessing
    from core_grpc.processing.outputs import DerivedOutput

__all__ = ["Execution", "Model", "load_model"]

_log = logging.getLogger(__name__)


class Model:
    """See the module's text. Belongs to the event loop."""

    def __init__(
        self,
        declared: DeclaredModel,
        lifecycle: Lifecycle[ModelState],
        loaded: LoadedModel,
        workers: Sequence[InstanceWorker],
        limits: BatchingLimits,
    ) -> None:
        self.spec: ModelSpec = declared.spec
        self.lifecycle = lifecycle
        self.preprocessing: Mapping[str, ImagePreprocessing] = declared.preprocessing
        """By the name of the input that takes encoded images."""
        self.output_datatypes: Mapping[str, Datatype] = {output.name: output.datatype for output in declared.spec.outputs}
        """By output name, in the model's order."""
        self._loaded = loaded
        self._workers = workers
        self._dispatcher = Dispatcher(limits, [_execute_on(worker) for worker in workers])
        self._group_of = _group_of(self.spec)
        self._nbytes_of = _nbytes_with_bytes if any(item.datatype is Datatype.BYTES for item in self.spec.inputs) else _nbytes

    def __repr__(self) -> str:
        return f"<Model {self.spec.name} {self.spec.version} {self.lifecycle!r} {self._dispatcher!r}>"

    @property
    def pending(self) -> int:
        """Requests that were admitted and are not executing."""
        return self._dispatcher.pending

    def infer(self, inputs: Mapping[str, Array], rows: int, deadline: float | None) -> Coroutine[Any, Any, Execution]:
        """Runs one request, with others in a batch where the model has a batch dimension.

        Args:
            inputs: arrays that fit ``spec``, which nobody changes until this returns.
            rows: their first dimension; ignored for a model without a batch dimension.
            deadline: monotonic seconds; None for no limit.

        Raises:
            QueueFull, DeadlineExpired, ModelNotReady: it was not run.
            BackendFailed, InvalidArgument: the engine failed or refused the values.
        """
        counted = rows if self.spec.max_batch_size else 1
        return self._dispatcher.infer(inputs, counted, self._nbytes_of(inputs), self._group_of(inputs), deadline)

    async def drain(self) -> None:
        """Waits until nothing is pending or executing."""
        await self._dispatcher.drain()

    async def close(self) -> None:
        """Refuses new work, fails what is pending, finishes what is executing, and frees the engine; idempotent."""
        if self.lifecycle.state is ModelState.READY:
            self.lifecycle.to(ModelState.UNLOADING)
        await self._dispatcher.close()
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._loaded.close()
        if self.lifecycle.state is ModelState.UNLOADING:
            self.lifecycle.to(ModelState.UNAVAILABLE, "unloaded")


class _DerivingInstance:
    """An instance that adds the derived outputs, on the instance's thread."""

    def __init__(self, inner: ModelInstance, derived: Sequence[DerivedOutput]) -> None:
        from core_grpc.processing.outputs import apply_derived  # noqa: PLC0415 (only where a model wants it)

        self._inner = inner
        self._derived = derived
        self._apply = apply_derived

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._apply(self._inner.execute(inputs), self._derived)

    def close(self) -> None:
        self._inner.close()


async def load_model(entry: RepositoryEntry, settings: ModelsSettings, lifecycle: Lifecycle[ModelState], pool: Executor) -> Model:
    """Reads, starts and warms up one model version; what blocks runs on ``pool`` and on the instances' threads.

    Raises:
        ModelLoadFailed: the model or its model.toml cannot be served.
        BackendFailed, InvalidArgument: the warm-up failed.
    """
    loop = asyncio.get_running_loop()
    loaded, declared = await loop.run_in_executor(pool, _read, entry, settings)
    workers: list[InstanceWorker] = []
    try:
        for index in range(entry.config.instance_count):
            name = f"{entry.name}/{entry.version}/{index}"
            workers.append(await InstanceWorker.start(name, _creator(loaded, declared)))
        count = entry.config.warmup_count
        await asyncio.gather(*(worker.run(lambda instance: warm_up(instance, declared.spec, count)) for worker in workers))
    except BaseException:
        for worker in workers:
            await worker.close()
        loaded.close()
        raise
    limits = BatchingLimits(
        max_batch_size=declared.spec.max_batch_size,
        max_queue_delay_s=entry.config.max_queue_delay_s,
        max_queue_rows=entry.config.max_queue_rows or settings.max_queue_rows,
        max_queue_bytes=settings.max_queue_bytes,
    )
    return Model(declared, lifecycle, loaded, workers, limits)


def _read(entry: RepositoryEntry, settings: ModelsSettings) -> tuple[LoadedModel, DeclaredModel]:
    backend = load_backend(entry.backend)
    options = dict(entry.config.backend_options.get(entry.backend, {}))
    if entry.backend == "onnxruntime":
        options.setdefault("intra_op_threads", settings.intra_op_threads)
    source = ModelSource(entry.name, entry.version, entry.directory, options, declared_inputs(entry.config))
    loaded = backend.load(source)
    try:
        return loaded, declare_model(entry, backend.platform, loaded, settings.default_max_batch_size)
    except BaseException:
        loaded.close()
        raise


def _creator(loaded: LoadedModel, declared: DeclaredModel) -> Callable[[], ModelInstance]:
    if not declared.derived:
        return loaded.create_instance
    return lambda: _DerivingInstance(loaded.create_instance(), declared.derived)


def _execute_on(worker: InstanceWorker) -> Execute:
    def execute(batch: Sequence[Member]) -> asyncio.Future[BatchResult]:
        members = [member.inputs for member in batch]
        return worker.run(lambda instance: _run_batch(instance, members))

    return execute


def _run_batch(instance: ModelInstance, members: Sequence[Mapping[str, Array]]) -> BatchResult:
    """On the instance's thread: the copies of stacking must not hold up the event loop."""
    began = time.perf_counter()
    outputs = instance.execute(stack(members))
    return BatchResult(outputs, time.perf_counter() - began)


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
