"""What model.toml says about ragged inputs (``[input.NAME] ragged``, ``[[batching.batch_input]]``), held against the engine's tensors.

Callers see a ragged input with the batch dimension and the shape that model.toml declares; the engine takes its elements in one dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from core_grpc.errors import ModelLoadFailed, quoted
from core_grpc.models.model_config import ModelConfig
from core_grpc.scheduler.ragged import BatchInput, RaggedForm
from core_grpc.types import Datatype, TensorSpec

_COUNTS = (Datatype.INT32, Datatype.INT64, Datatype.FP32)


def ragged_form(config: ModelConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> RaggedForm | None:
    """The form of a model with ragged inputs; None for a model without. The tensors are the engine's.

    Raises:
        ModelLoadFailed: model.toml contradicts the engine or itself.
    """
    ragged = frozenset(name for name, item in config.inputs.items() if item.ragged)
    batching = config.batching
    if not ragged:
        for key, value in (("batch_input", batching.batch_inputs), ("batch_output", batching.scattered)):
            if value:
                raise ModelLoadFailed(f"model.toml: [[batching.{key}]]: wanted none, because no input is ragged")
        return None
    if not config.max_batch_size:
        raise ModelLoadFailed("model.toml: max_batch_size: wanted above 0, because an input is ragged")
    if batching.allowed_batch_sizes or any(item.padding for item in config.inputs.values()):
        raise ModelLoadFailed("model.toml: ragged: wanted no padding and no allowed_batch_sizes beside it")
    specs, out_specs = {spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs}
    for name in ragged:
        _check_flat(f"[input.{name}] ragged", specs, name)
    for name, source in batching.scattered.items():
        _check_source("batch_output", source, ragged)
        if name not in out_specs:
            raise ModelLoadFailed(f"model.toml: [[batching.batch_output]] target: wanted one of {', '.join(out_specs)}, got {quoted(name)}")
    return RaggedForm(ragged, tuple(_batch_input(target, config, specs, ragged) for target in batching.batch_inputs), batching.scattered)


def request_inputs(form: RaggedForm, config: ModelConfig, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs as requests have them."""
    made = {item.target for item in form.batch_inputs}
    return tuple(_with_shape(spec, config, form.ragged) for spec in inputs if spec.name not in made)


def request_outputs(form: RaggedForm, config: ModelConfig, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The outputs as answers have them."""
    return tuple(
        replace(spec, shape=(*_declared_shape(config, form.scattered[spec.name]), *spec.shape[1:]), dimension_names=())
        if spec.name in form.scattered
        else spec
        for spec in outputs
    )


def _with_shape(spec: TensorSpec, config: ModelConfig, ragged: frozenset[str]) -> TensorSpec:
    return replace(spec, shape=_declared_shape(config, spec.name), dimension_names=()) if spec.name in ragged else spec


def _declared_shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    shape = config.inputs[name].shape
    if shape is None or len(shape) < 2 or shape[0] != -1:
        raise ModelLoadFailed(
            f"model.toml: [input.{name}] shape: wanted the shape that requests have, beginning with -1 for the batch, because the input "
            f"is ragged, got {'none' if shape is None else list(shape)}"
        )
    return shape


def _check_flat(where: str, specs: Mapping[str, TensorSpec], name: str) -> None:
    if name not in specs:
        raise ModelLoadFailed(f"model.toml: {where}: the model has no such input; it has {', '.join(map(quoted, specs))}")
    if specs[name].shape != (-1,):
        raise ModelLoadFailed(f"model.toml: {where}: wanted an input of one variable dimension in the model, got {list(specs[name].shape)}")


def _check_source(key: str, source: str, ragged: frozenset[str]) -> None:
    if source not in ragged:
        raise ModelLoadFailed(
            f"model.toml: [[batching.{key}]] source: wanted a ragged input ({', '.join(sorted(ragged))}), got {quoted(source)}"
        )


def _batch_input(target: str, config: ModelConfig, specs: Mapping[str, TensorSpec], ragged: frozenset[str]) -> BatchInput:
    kind, source = config.batching.batch_inputs[target]
    where = "model.toml: [[batching.batch_input]] target"
    if target not in specs or target in config.inputs:
        free = [name for name in specs if name not in config.inputs]
        raise ModelLoadFailed(f"{where}: wanted an input that has no table of its own ({', '.join(free) or 'none'}), got {quoted(target)}")
    if specs[target].datatype not in _COUNTS:
        raise ModelLoadFailed(f"{where}: wanted an input of {', '.join(_COUNTS)}, {quoted(target)} is {specs[target].datatype}")
    _check_source("batch_input", source, ragged)
    return BatchInput(kind, target, source, specs[target].datatype.dtype)
