"""From a repository entry to a model that answers: read, declare, start the instances, warm them up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from core_grpc.backends import load_backend
from core_grpc.backends.base import (
    AnyLoadedModel,
    Backend,
    DecoupledInstance,
    LoadedDecoupledModel,
    LoadedDeviceModel,
    LoadedModel,
    LoadedRequestModel,
    ModelInstance,
    ModelSource,
    Placement,
    RequestInstance,
)
from core_grpc.backends.cores import CAN_PIN, usable_cores
from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.errors import ModelLoadFailed
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.batched_model import BatchedModel
from core_grpc.models.compute import gate_orders, lanes_of
from core_grpc.models.decoupled_model import DecoupledModel
from core_grpc.models.instances import request_instance
from core_grpc.models.model import Model
from core_grpc.models.model_spec import DeclaredModel, declare_model, declared_tensors
from core_grpc.models.placement import Machine, placed_instances, resolved_groups
from core_grpc.models.repository import RepositoryEntry
from core_grpc.models.reshape import has_reshape, reshaped_model
from core_grpc.models.sequence_model import SequenceModel, sequence_limits
from core_grpc.models.sequence_states import declared_states, in_model_layout
from core_grpc.models.warmup import WarmUpRun, warm_up, warm_up_runs, warm_up_stream
from core_grpc.scheduler.dynamic_batcher import BatchingLimits
from core_grpc.scheduler.grants import ComputeGrants
from core_grpc.settings import ModelsSettings


async def load_model(
    entry: RepositoryEntry, settings: ModelsSettings, lifecycle: Lifecycle[ModelState], pool: Executor, grants: ComputeGrants
) -> Model:
    """Reads, starts and warms up one model version; what blocks runs on ``pool`` and on the instances' threads.

    Its instances ask ``grants`` before they execute, where they have to. The warm-up does not ask.

    Raises:
        ModelLoadFailed: the model or its model.toml cannot be served.
        BackendFailed, InvalidArgument: the warm-up failed.
    """
    loaded, declared, runs = await asyncio.get_running_loop().run_in_executor(pool, _read, entry, settings)
    if isinstance(loaded, LoadedDecoupledModel):
        return await _decoupled_model(entry, settings, lifecycle, loaded, declared, runs)
    return await _batched_model(entry, settings, lifecycle, loaded, declared, runs, grants=grants)


async def _batched_model(  # noqa: PLR0917 (one caller)
    entry: RepositoryEntry,
    settings: ModelsSettings,
    lifecycle: Lifecycle[ModelState],
    loaded: LoadedModel | LoadedRequestModel,
    declared: DeclaredModel,
    runs: Sequence[WarmUpRun],
    *,
    grants: ComputeGrants,
) -> Model:
    workers: list[InstanceWorker[RequestInstance]] = []
    lanes = partial(lanes_of, loaded, keeps_order=bool(declared.sequences))
    try:
        for placement, _ in placed_instances(declared.config.instances):
            for _ in range(lanes(placement)):
                name = f"{entry.name}/{entry.version}/{len(workers)}"
                workers.append(await InstanceWorker.start(name, _creator(loaded, declared, placement), placement.cores))
        await asyncio.gather(*(worker.run(lambda instance: warm_up(instance, declared.engine_spec, runs)) for worker in workers))
        gates = grants.gates(
            gate_orders(declared.config, load_backend(declared.backend).traits, lanes), declared.config.share_weight or 1.0
        )
    except BaseException:
        for worker in workers:
            await worker.close()
        loaded.close()
        raise
    queue = entry.config.queue
    max_rows, max_bytes = queue.max_rows or settings.max_queue_rows, queue.max_bytes or settings.max_queue_bytes
    if declared.sequences:
        sequences = sequence_limits(declared.config, declared.spec, len(workers), max_rows, max_bytes)
        return _watched(SequenceModel(declared, lifecycle, loaded, workers, sequences, declared.sequences, gates=gates), loaded)
    limits = BatchingLimits(
        max_batch_size=declared.spec.max_batch_size,
        max_queue_delay_s=entry.config.batching.max_queue_delay_s,
        max_queue_rows=max_rows,
        max_queue_bytes=max_bytes,
        preferred_batch_sizes=entry.config.batching.preferred_batch_sizes,
        level_max_requests=tuple(policy.max_requests for policy in queue.policies.policies()),
        delays=queue.policies.delays,
    )
    return _watched(BatchedModel(declared, lifecycle, loaded, workers, limits, gates=gates), loaded)


def _watched(model: Model, loaded: LoadedModel | LoadedRequestModel) -> Model:
    """The model, which hears when a device fails that it runs on."""
    if isinstance(loaded, LoadedDeviceModel):
        loop = asyncio.get_running_loop()
        loaded.watch_device(lambda reason: _tell(loop, model, reason))
    return model


def _tell(loop: asyncio.AbstractEventLoop, model: Model, reason: str) -> None:
    # After the loop's end nobody asks for the model any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(model.device_failed, reason)


async def _decoupled_model(  # noqa: PLR0917 (one caller)
    entry: RepositoryEntry,
    settings: ModelsSettings,
    lifecycle: Lifecycle[ModelState],
    loaded: LoadedDecoupledModel,
    declared: DeclaredModel,
    runs: Sequence[WarmUpRun],
) -> DecoupledModel:
    instances: list[DecoupledInstance] = []
    try:
        for placement, _ in placed_instances(declared.config.instances):
            instances.append(await loaded.start_instance(placement))
        await asyncio.gather(*(warm_up_stream(instance, declared.engine_spec, runs) for instance in instances))
    except BaseException:
        for instance in instances:
            await instance.close()
        loaded.close()
        raise
    return DecoupledModel(declared, lifecycle, loaded, instances, entry.config.queue.max_rows or settings.max_queue_rows)


def _read(entry: RepositoryEntry, settings: ModelsSettings) -> tuple[AnyLoadedModel, DeclaredModel, Sequence[WarmUpRun]]:
    backend = load_backend(entry.backend)
    options = dict(entry.config.backend_options.get(entry.backend, {}))
    if entry.backend == "onnxruntime":
        options.setdefault("intra_op_threads", settings.intra_op_threads)
    entry = _placed(entry, backend, options)
    states = declared_states(entry.config.sequence.states if entry.config.sequence else ())
    source = ModelSource(
        entry.name,
        entry.version,
        entry.directory,
        options,
        (*declared_tensors("input", entry.config.inputs), *states[0]),
        (*declared_tensors("output", {name: item for name, item in entry.config.outputs.items() if not item.source}), *states[1]),
        entry.config.max_batch_size,
        tuple(dict.fromkeys(placed.placement for placed in placed_instances(entry.config.instances))),
        entry.config.model_file,
        settings.gpu_pool_bytes,
    )
    loaded = backend.load(source)
    try:
        loaded = _reshaped(loaded, entry)
        declared = declare_model(entry, backend.platform, loaded, settings.default_max_batch_size)
        return loaded, declared, warm_up_runs(declared, entry.model_directory)
    except BaseException:
        loaded.close()
        raise


def _reshaped(loaded: AnyLoadedModel, entry: RepositoryEntry) -> AnyLoadedModel:
    if not has_reshape(entry.config):
        return loaded
    if entry.backend != "onnxruntime":
        raise ModelLoadFailed(f"model.toml: reshape: wanted none, because the backend {entry.backend} has the shapes that are declared")
    return reshaped_model(cast("LoadedModel", loaded), entry.config)


def _placed(entry: RepositoryEntry, backend: Backend, options: Mapping[str, Any]) -> RepositoryEntry:
    """The entry, with its instance groups as they are on this machine."""
    threads = options.get("intra_op_threads", 1)
    machine = Machine(usable_cores(), CAN_PIN, backend.gpus())
    groups = resolved_groups(entry.config.instances, entry.name, backend.traits, machine, threads if isinstance(threads, int) else 1)
    return replace(entry, config=replace(entry.config, instances=groups))


def _creator(loaded: LoadedModel | LoadedRequestModel, declared: DeclaredModel, placement: Placement) -> Callable[[], RequestInstance]:
    def create() -> RequestInstance:
        instance: ModelInstance | RequestInstance = loaded.create_instance(placement)
        if declared.sequences:
            instance = in_model_layout(instance, declared.sequences.tensors)
        return request_instance(instance, declared.derived, declared.form, declared.spec.max_batch_size > 0)

    return create
