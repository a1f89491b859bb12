"""The tensors of a pipeline, held against the models of its steps: what each is, and whether who makes it and who takes it agree.

Shapes are whole, with the batch dimension where a model has one, so that a pipeline without a batch dimension can hand the rows of a
tensor to a model that has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from core_grpc.errors import ModelLoadFailed, quoted
from core_grpc.pipelines.plan import Plan
from core_grpc.types import ModelSpec, TensorSpec


class PipelineTensors(NamedTuple):
    """What a pipeline takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def pipeline_tensors(
    plan: Plan, models: Sequence[ModelSpec], declared: Iterable[TensorSpec], inputs: Sequence[str], max_batch_size: int
) -> PipelineTensors:
    """Joins what model.toml declares of the pipeline's tensors with what the models of its steps say, in the steps' order.

    An input or output of the pipeline that is not ``declared`` is what its first taker or its maker says it is.

    Raises:
        ModelLoadFailed: they contradict each other; the text names the step.
    """
    known = {spec.name: spec for spec in declared}
    for position in plan.order:
        title, spec = plan.titled(position), models[position]
        _check_model(title, spec, max_batch_size)
        step = plan.steps[position]
        for name, tensor in step.inputs.items():
            taken = _tensor(f"{title} inputs.{name}", "input", spec.inputs, name)
            _join(f"{title} inputs.{name}", known, tensor, taken, f"from {plan.origin(tensor)}")
        for item in spec.inputs:
            if item.name not in step.inputs and not item.optional:
                raise ModelLoadFailed(f"model.toml: {title} inputs: the model needs {quoted(item.name)} too, which is not there")
        for name, tensor in step.outputs.items():
            made = _tensor(f"{title} outputs.{name}", "output", spec.outputs, name)
            _join(f"{title} outputs.{name}", known, tensor, made, "declared in model.toml")
    needed = _needed(plan, models)
    return PipelineTensors(
        tuple(replace(known[name], optional=name not in needed) for name in inputs), tuple(known[name] for name in plan.outputs)
    )


def _check_model(title: str, spec: ModelSpec, max_batch_size: int) -> None:
    if spec.decoupled:
        raise ModelLoadFailed(f"model.toml: {title}: wanted a model that answers once, got a decoupled one")
    if max_batch_size and spec.max_batch_size < max_batch_size:
        raise ModelLoadFailed(
            f"model.toml: {title}: wanted a model that takes the pipeline's max_batch_size of {max_batch_size} rows, "
            f"its max_batch_size is {spec.max_batch_size}"
        )


def _tensor(where: str, role: str, specs: Sequence[TensorSpec], name: str) -> TensorSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    names = ", ".join(quoted(spec.name) for spec in specs) or f"no {role}s"
    raise ModelLoadFailed(f"model.toml: {where}: the model has no such {role}; it has {names}")


def _join(where: str, known: dict[str, TensorSpec], tensor: str, spec: TensorSpec, whence: str) -> None:
    """Remembers what the tensor is, or holds the model's word against what is known of it."""
    earlier = known.get(tensor)
    if earlier is None:
        known[tensor] = TensorSpec(tensor, spec.datatype, spec.shape)
    elif earlier.datatype is not spec.datatype or not _may_be(earlier.shape, spec.shape):
        hint = "; declare [input.NAME.image] on the pipeline's own input to decode images" if spec.accepts == "image" else ""
        raise ModelLoadFailed(
            f"model.toml: {where}: wanted {spec.datatype} {list(spec.shape)}, as the model has it, "
            f"got tensor {quoted(tensor)} {whence}, which is {earlier.datatype} {list(earlier.shape)}{hint}"
        )


def _may_be(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a tensor can have both shapes."""
    return len(one) == len(other) and all(-1 in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _needed(plan: Plan, models: Sequence[ModelSpec]) -> frozenset[str]:
    """The tensors without which a step cannot run."""
    optional = [{item.name for item in spec.inputs if item.optional} for spec in models]
    return frozenset(
        tensor for position, step in enumerate(plan.steps) for name, tensor in step.inputs.items() if name not in optional[position]
    )
