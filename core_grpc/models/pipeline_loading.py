"""From the repository entry of a pipeline to a model that answers, and what a pipeline's steps mean for loading and unloading.

A pipeline is loaded after the models of its steps, which it waits for where they are being loaded; a load of the pipeline alone loads those
that do not answer. Pipelines may be steps of others, never of themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from core_grpc.errors import GatewayError, ModelLoadFailed, ModelNotReady, NotFound, quoted
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.batching_config import BatchingConfig, QueueConfig
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.model_spec import declare_model, declared_tensors
from core_grpc.models.pipeline_model import PipelineModel
from core_grpc.models.pipeline_steps import PipelineSteps
from core_grpc.models.registry import Registry, Slot
from core_grpc.models.repository import RepositoryEntry
from core_grpc.models.reshape import has_reshape
from core_grpc.pipelines.plan import Plan, make_plan
from core_grpc.pipelines.step import PLATFORM, Step, titled
from core_grpc.pipelines.tensors import PipelineTensors, pipeline_tensors
from core_grpc.settings import ModelsSettings


async def load_pipeline(
    entry: RepositoryEntry, settings: ModelsSettings, lifecycle: Lifecycle[ModelState], pool: Executor, registry: Registry
) -> PipelineModel:
    """Joins a pipeline with the models of its steps, once none of them is being loaded any more.

    Raises:
        ModelLoadFailed: model.toml contradicts itself or those models, or one of them does not answer; the text names the step.
    """
    config = entry.config
    _check_config(config)
    plan = make_plan(config.steps, list(config.inputs), list(config.outputs))
    _check_circle(entry, registry)
    for step in plan.steps:
        await _settled(slot for slot in registry.slots(step.model) if step.version in ("", slot.entry.version))
    steps = PipelineSteps(registry, entry.name, plan, has_batch_dimension=bool(config.max_batch_size))
    tensors = _tensors(plan, config, steps)
    declared = await asyncio.get_running_loop().run_in_executor(pool, declare_model, entry, PLATFORM, tensors, 0)
    return PipelineModel(declared, lifecycle, plan, steps, config.queue.max_rows or settings.max_queue_rows)


def _check_config(config: ModelConfig) -> None:
    """Refuses what says how an engine runs: the steps' models have engines, the pipeline has none."""
    if config.sequence:
        raise ModelLoadFailed("model.toml: [sequence]: a pipeline has no control inputs; the models of its steps may have them")
    for name, item in config.outputs.items():
        if item.source:
            raise ModelLoadFailed(f"model.toml: [output.{name}] from: a pipeline derives no outputs; the models of its steps may")
    for key, is_said in (
        ("[instances]", config.instances != (InstanceGroup(),)),
        ("[batching]", config.batching != BatchingConfig()),
        ("[queue], except for max_rows", replace(config.queue, max_rows=None) != QueueConfig()),
        ("[warmup]", bool(config.warmup.count or config.warmup.samples)),
        ("[fair_share]", config.share_weight is not None),
        ("reshape", has_reshape(config)),
    ):
        if is_said:
            raise ModelLoadFailed(f"model.toml: {key}: a pipeline has no engine; say this of the models of its steps")


def _check_circle(entry: RepositoryEntry, registry: Registry) -> None:
    """Refuses a pipeline that is a step of itself, directly or through others."""
    seen: set[str] = set()
    chains: list[tuple[Step, tuple[str, ...]]] = [(step, (titled(position, step),)) for position, step in _steps([entry])]
    while chains:
        step, chain = chains.pop()
        if step.model == entry.name:
            raise ModelLoadFailed(f"model.toml: {chain[0]}: the pipeline would be a step of itself, by {', '.join(chain)}")
        if step.model not in seen:
            seen.add(step.model)
            inner = _steps(slot.entry for slot in registry.slots(step.model))
            chains.extend((item, (*chain, titled(position, item))) for position, item in inner)


def _steps(entries: Iterable[RepositoryEntry]) -> Iterator[tuple[int, Step]]:
    for entry in entries:
        yield from enumerate(entry.config.steps)


def _tell(is_over: asyncio.Event, _state: ModelState) -> None:
    is_over.set()


async def _settled(slots: Iterable[Slot]) -> None:
    """Waits until none of them is being loaded."""
    for slot in slots:
        if slot.lifecycle.state is ModelState.LOADING:
            is_over = asyncio.Event()
            unwatch = slot.lifecycle.watch(partial(_tell, is_over))
            try:
                await is_over.wait()
            finally:
                unwatch()


def _tensors(plan: Plan, config: ModelConfig, steps: PipelineSteps) -> PipelineTensors:
    try:
        models = [steps.find(position).spec for position in range(len(plan.steps))]
    except GatewayError as error:
        raise ModelLoadFailed(f"model.toml: {error.message}") from None
    declared = (*declared_tensors("input", config.inputs), *declared_tensors("output", config.outputs))
    return pipeline_tensors(plan, models, declared, list(config.inputs), config.max_batch_size or 0)


async def models_to_load(
    name: str, entries: Sequence[RepositoryEntry], entries_of: Callable[[str], Awaitable[Sequence[RepositoryEntry]]]
) -> list[str]:
    """The models of the steps of ``name``, and of theirs, each after those that it needs; none for what is not a pipeline.

    Args:
        name: a model of the repository.
        entries: its versions.
        entries_of: the versions of a step's model; raises NotFound.

    Raises:
        ModelLoadFailed: no such model as a step's, or a pipeline is a step of itself.
    """
    found: list[str] = []

    async def visit(entries: Sequence[RepositoryEntry], chain: tuple[str, ...]) -> None:
        for position, step in _steps(entries):
            title = titled(position, step)
            if step.model in chain:
                circle = ", ".join(map(quoted, (*chain, step.model)))
                raise ModelLoadFailed(f"failed to load {quoted(name)}, model.toml: {title}: pipelines are steps of each other: {circle}")
            if step.model in found:
                continue
            try:
                inner = await entries_of(step.model)
            except NotFound:
                raise ModelLoadFailed(f"failed to load {quoted(name)}, {title}: the repository has no such model") from None
            await visit(inner, (*chain, step.model))
            found.append(step.model)

    await visit(entries, (name,))
    return found


def with_models_of_steps(names: Iterable[str], entries: Sequence[RepositoryEntry]) -> frozenset[str]:
    """The names, and those of the models that pipelines among them need."""
    needed, ahead = set[str](), list(names)
    while ahead:
        name = ahead.pop()
        if name not in needed:
            needed.add(name)
            ahead.extend(step.model for _, step in _steps(entry for entry in entries if entry.name == name))
    return frozenset(needed)


def models_to_unload(name: str, registry: Registry) -> list[str]:
    """The models of the steps of ``name``, and of theirs, each before those that it needs.

    Without those that are a step's of another pipeline which answers.
    """
    found: list[str] = []
    gone = {name}
    ahead = [name]
    while ahead:
        for _, step in _steps(slot.entry for slot in registry.slots(ahead.pop(0))):
            if step.model not in gone and not _is_needed(step.model, gone, registry):
                gone.add(step.model)
                found.append(step.model)
                ahead.append(step.model)
    return found


def _is_needed(name: str, gone: set[str], registry: Registry) -> bool:
    return any(
        step.model == name
        for slot in registry.all_slots()
        if slot.lifecycle.state is ModelState.READY and slot.entry.name not in gone
        for step in slot.entry.config.steps
    )


def answers(name: str, registry: Registry) -> bool:
    """Whether a version of the model answers."""
    try:
        registry.find(name)
    except (NotFound, ModelNotReady):
        return False
    return True
