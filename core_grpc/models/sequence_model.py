"""A model of sequences: each sequence has one of its instances to itself as far as it can tell, whatever others run beside it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from typing_extensions import override

from core_grpc.backends.base import LoadedModel, LoadedRequestModel, RequestInstance
from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.errors import InvalidArgument
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.batched_model import nbytes_of
from core_grpc.models.model import Model
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.models.request_groups import group_of
from core_grpc.models.sequence_controls import sequence_call
from core_grpc.models.sequence_declaration import SequenceDeclaration
from core_grpc.models.sequence_rows import SequenceRows
from core_grpc.scheduler.dispatcher import BatchResult, Execution, QueueDepth
from core_grpc.scheduler.grants import Gate
from core_grpc.scheduler.live_sequences import SequenceLimits, Strategy
from core_grpc.scheduler.sequence_dispatcher import Execute, SequenceDispatcher, SequenceMember
from core_grpc.types import Array, InferRequest, ModelSpec

_NO_REQUEST = InferRequest("", "", {})


class SequenceModel(Model):
    """See the module's text."""

    def __init__(  # noqa: PLR0917 (one caller)
        self,
        declared: DeclaredModel,
        lifecycle: Lifecycle[ModelState],
        loaded: LoadedModel | LoadedRequestModel,
        workers: Sequence[InstanceWorker[RequestInstance]],
        limits: SequenceLimits,
        sequences: SequenceDeclaration,
        *,
        gates: Sequence[Gate],
    ) -> None:
        super().__init__(declared, lifecycle)
        self._loaded = loaded
        self._workers = workers
        self._controls = sequences.controls
        # Code in Python may keep states of its own: what it ran must not run again.
        runs_again = declared.backend != "python"
        has_places = limits.strategy is Strategy.DIRECT and sequences.controls.tells_empty_rows and self.spec.max_batch_size > 0
        rows = SequenceRows(sequences.controls, sequences.states, has_places=has_places)
        executes = [_execute_on(worker, rows) for worker in workers]
        counts = self.statistics
        self._dispatcher = SequenceDispatcher(
            limits, executes, counts.executed, on_failed=counts.run_failed, runs_again=runs_again, gates=gates
        )
        self._policies = declared.config.queue.policies
        self._group_of = group_of(self.spec, declared.form, declared.config.batching.match_parameters)
        self._nbytes_of = nbytes_of(self.spec)

    def __repr__(self) -> str:
        return f"<SequenceModel {self.spec.name} {self.spec.version} {self.lifecycle!r} {self._dispatcher!r}>"

    @property
    @override
    def is_idle(self) -> bool:
        return not (self.users or self._dispatcher.sequences)

    @override
    def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Coroutine[Any, Any, Execution]:
        request = request or _NO_REQUEST
        if rows != 1:
            raise InvalidArgument(
                f"inference request to model '{self.spec.name}' must specify batch-size 1 due to requirements of sequence batcher: "
                f"got batch {rows}"
            )
        call = sequence_call(request.parameters)
        # An id that its input cannot hold is refused here, before it begins anything.
        self._controls.filled(call)
        deadline = self._policies.terms(request.parameters, request.deadline, time.monotonic()).deadline
        return self._dispatcher.infer(call, inputs, self._nbytes_of(inputs), self._group_of(inputs, request), deadline, request)

    @property
    @override
    def queue_depth(self) -> QueueDepth:
        return self._dispatcher.depth

    @override
    async def unused(self) -> None:
        self._dispatcher.stop()
        await super().unused()

    @override
    async def drain(self) -> None:
        await self._dispatcher.drain()

    @override
    async def _close(self) -> None:
        await self._dispatcher.close()
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._loaded.close()


def sequence_limits(config: ModelConfig, spec: ModelSpec, instances: int, max_queue_rows: int, max_queue_bytes: int) -> SequenceLimits:
    """What ``[sequence]``, ``[batching]`` and ``[queue]`` say, with so many requests and bytes that may wait.

    Raises:
        ValueError: it is no model of sequences.
    """
    sequence, batching = config.sequence, config.batching
    if sequence is None:
        raise ValueError("a model without [sequence]")
    most = max(spec.max_batch_size, 1)
    is_direct = sequence.strategy is Strategy.DIRECT
    preferred = min(batching.preferred_batch_sizes, default=most)
    enough = max(math.ceil(sequence.minimum_slot_utilization * most), 1) if is_direct else preferred
    return SequenceLimits(
        model=spec.name,
        strategy=sequence.strategy,
        instances=instances,
        slots=most if is_direct else sequence.max_candidate_sequences,
        max_batch_size=most,
        enough=enough,
        max_queue_delay_s=batching.max_queue_delay_s,
        max_idle_s=sequence.max_idle_s,
        max_queue_requests=min(max_queue_rows, config.queue.policies.default.max_requests or max_queue_rows),
        max_queue_bytes=max_queue_bytes,
    )


def _execute_on(worker: InstanceWorker[RequestInstance], rows: SequenceRows) -> Execute:
    def execute(batch: Sequence[SequenceMember]) -> asyncio.Future[BatchResult]:
        return worker.run(lambda instance: _run_batch(rows, instance, batch))

    return execute


def _run_batch(rows: SequenceRows, instance: RequestInstance, batch: Sequence[SequenceMember]) -> BatchResult:
    began = time.perf_counter()
    parts = rows.execute(instance, batch)
    return BatchResult(parts, time.perf_counter() - began)
