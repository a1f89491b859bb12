"""What a model takes and gives: what its backend read from the model, joined with what model.toml says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core_grpc.backends.base import AnyLoadedModel, LoadedDecoupledModel
from core_grpc.errors import ModelLoadFailed, quoted
from core_grpc.models.batch_form import batch_form
from core_grpc.models.batching_config import check_batching
from core_grpc.models.model_config import InputConfig, ModelConfig, OutputConfig
from core_grpc.models.ragged_model import ragged_form, request_inputs, request_outputs
from core_grpc.models.repository import RepositoryEntry, file_in_model
from core_grpc.models.sequence_declaration import SequenceDeclaration, declare_sequences
from core_grpc.models.sequence_states import StateTensors, state_tensors
from core_grpc.pipelines.tensors import PipelineTensors
from core_grpc.scheduler.padding import BatchForm
from core_grpc.scheduler.ragged import RaggedForm
from core_grpc.types import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from core_grpc.processing.images import ImagePreprocessing
    from core_grpc.processing.outputs import DerivedOutput


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """A model's spec and what model.toml adds around the engine."""

    spec: ModelSpec
    preprocessing: Mapping[str, ImagePreprocessing]
    """By input name."""
    derived: tuple[DerivedOutput, ...]
    config: ModelConfig
    """What model.toml says."""
    backend: str
    """A name in ``BACKENDS``, or ``PIPELINE``."""
    engine_spec: ModelSpec
    """``spec`` with all that the engine takes and gives: control inputs and states of sequences, which callers do not see, are among it."""
    form: BatchForm | RaggedForm
    """How batches are filled up."""
    sequences: SequenceDeclaration | None
    """Of a model of sequences: what is filled in and kept for them."""


def declared_tensors(role: str, tables: Mapping[str, InputConfig] | Mapping[str, OutputConfig]) -> tuple[TensorSpec, ...]:
    """The inputs or outputs (``role``) whose datatype and shape model.toml gives.

    Raises:
        ModelLoadFailed: one has only one of the two.
    """
    specs: list[TensorSpec] = []
    for name, item in tables.items():
        if (item.datatype is None) != (item.shape is None):
            raise ModelLoadFailed(f"model.toml: [{role}.{name}]: datatype and shape go together, got one of them")
        if item.datatype is not None and item.shape is not None:
            is_optional = isinstance(item, InputConfig) and item.optional
            specs.append(TensorSpec(name, item.datatype, item.shape, description=item.description, optional=is_optional))
    return tuple(specs)


def declare_model(
    entry: RepositoryEntry, platform: str, loaded: AnyLoadedModel | PipelineTensors, default_max_batch_size: int
) -> DeclaredModel:
    """Joins the two.

    Raises:
        ModelLoadFailed: model.toml contradicts the model, or names something it does not have.
    """
    config = entry.config
    ragged = ragged_form(config, loaded.inputs, loaded.outputs)
    if ragged and entry.backend == "python":
        raise ModelLoadFailed("model.toml: ragged: wanted no ragged input: a model in Python sees each request as it came")
    if ragged and config.sequence:
        raise ModelLoadFailed("model.toml: ragged: wanted no ragged input for a model with [sequence], whose requests are one row each")
    own_inputs = request_inputs(ragged, config, loaded.inputs) if ragged else loaded.inputs
    own_outputs = request_outputs(ragged, config, loaded.outputs) if ragged else loaded.outputs
    _check_names("input", config.inputs, own_inputs)
    _check_names("output", {name: item for name, item in config.outputs.items() if not item.source}, own_outputs)
    tensors = state_tensors(config.sequence.states if config.sequence else (), own_inputs, own_outputs, config.max_batch_size)
    max_batch_size = _max_batch_size(config, loaded if ragged else tensors, default_max_batch_size)
    has_batch = max_batch_size > 0
    inputs = tuple(_input_spec(spec, config.inputs.get(spec.name, InputConfig()), has_batch=has_batch) for spec in tensors.inputs)
    outputs = tuple(
        _output_spec(spec, config.outputs.get(spec.name, OutputConfig()), entry.model_directory, has_batch=has_batch)
        for spec in tensors.outputs
    )
    check_batching(config.batching, max_batch_size)
    form = ragged or batch_form(config, inputs, outputs, max_batch_size=max_batch_size, takes_requests=entry.backend == "python")
    preprocessing = _preprocessing(config, inputs)
    derived = _derived_outputs(config, outputs, entry.model_directory)
    if derived and isinstance(loaded, LoadedDecoupledModel):
        raise ModelLoadFailed("model.toml: a decoupled model has no derived outputs: compute them in the model")
    # A derived output stands in for its source, which is served beside it only where model.toml has a table for it.
    replaced = {item.source for item in derived} - set(config.outputs)
    spec = ModelSpec(
        name=entry.name,
        version=entry.version,
        platform=platform,
        max_batch_size=max_batch_size,
        inputs=tuple(replace(item, accepts="image") if item.name in preprocessing else item for item in inputs),
        outputs=(*(item for item in outputs if item.name not in replaced), *(item.spec for item in derived)),
        description=config.description,
        license=config.license,
        decoupled=isinstance(loaded, LoadedDecoupledModel),
        splits_requests=config.batching.split_large_requests,
    )
    _check_response_cache(config, spec)
    sequences = declare_sequences(config, inputs, tensors, entry.model_directory, spec)
    public = sequences.public(spec) if sequences else spec
    return DeclaredModel(public, preprocessing, derived, config, entry.backend, spec, form, sequences)


def _check_response_cache(config: ModelConfig, spec: ModelSpec) -> None:
    if not config.response_cache:
        return
    kinds = (
        (config.sequence, "a model of sequences: its answers depend on the requests before"),
        (spec.decoupled, "a decoupled model: it streams"),
        (config.batching.preserve_ordering, "a model that preserves the order of its requests: kept answers would overtake"),
        (config.steps, "a pipeline, whose steps' models come and go without it: give them one"),
    )
    for is_one, kind in kinds:
        if is_one:
            raise ModelLoadFailed(f"model.toml: [response_cache] enable: wanted false for {kind}, got true")


def _check_names(role: str, declared: Mapping[str, object], specs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in specs]
    for name in declared:
        if name not in names:
            raise ModelLoadFailed(f"model.toml: [{role}.{name}]: the model has no such {role}; it has {', '.join(map(quoted, names))}")


def _max_batch_size(config: ModelConfig, tensors: AnyLoadedModel | PipelineTensors | StateTensors, default: int) -> int:
    specs = (*tensors.inputs, *tensors.outputs)
    if config.max_batch_size is None:
        names = {spec.dimension_names[0] if spec.dimension_names else "" for spec in specs}
        return default if all(spec.shape and spec.shape[0] == -1 for spec in specs) and len(names) == 1 and "" not in names else 0
    if config.max_batch_size:
        for spec in specs:
            if not spec.shape or spec.shape[0] != -1:
                raise ModelLoadFailed(
                    f"model.toml: max_batch_size: wanted 0, because '{spec.name}' has shape {list(spec.shape)}, "
                    f"whose first dimension is not variable, got {config.max_batch_size}"
                )
    return config.max_batch_size


def _declared_spec(role: str, spec: TensorSpec, config: InputConfig | OutputConfig, *, has_batch: bool) -> TensorSpec:
    """As the model has it; a size that is variable in the model, other than the batch, may be declared as one number."""
    where = f"model.toml: [{role}.{spec.name}]"
    if config.datatype is not None and config.datatype != spec.datatype:
        raise ModelLoadFailed(f"{where} datatype: wanted {spec.datatype}, as the model has it, got {config.datatype}")
    names = _dimension_names(role, spec, config)
    if config.shape is None:
        return replace(spec, description=config.description, dimension_names=names)
    pairs = list(zip(spec.shape, config.shape, strict=False))
    is_narrower = all(own in (-1, declared) for own, declared in pairs[has_batch:])
    if len(spec.shape) != len(config.shape) or (has_batch and pairs[0] != (-1, -1)) or not is_narrower:
        raise ModelLoadFailed(f"{where} shape: wanted {list(spec.shape)}, as the model has it, got {list(config.shape)}")
    return replace(spec, shape=config.shape, description=config.description, dimension_names=names)


def _input_spec(spec: TensorSpec, config: InputConfig, *, has_batch: bool) -> TensorSpec:
    if config.optional and not spec.optional:
        raise ModelLoadFailed(f"model.toml: [input.{spec.name}] optional: wanted an input that the model has a default for")
    return _declared_spec("input", spec, config, has_batch=has_batch)


def _output_spec(spec: TensorSpec, config: OutputConfig, model_directory: Path, *, has_batch: bool) -> TensorSpec:
    declared = _declared_spec("output", spec, config, has_batch=has_batch)
    labelled = replace(declared, labels=_labels(config, model_directory))
    if labelled.labels:
        from core_grpc.processing.labels import check_labels  # noqa: PLC0415 (see _preprocessing)

        check_labels(labelled.labels, labelled)
    return labelled


def _dimension_names(role: str, spec: TensorSpec, config: InputConfig | OutputConfig) -> tuple[str, ...]:
    if config.dimension_names and len(config.dimension_names) != len(spec.shape):
        raise ModelLoadFailed(
            f"model.toml: [{role}.{spec.name}] dimension_names: wanted {len(spec.shape)}, one for each dimension, "
            f"got {len(config.dimension_names)}"
        )
    return config.dimension_names or spec.dimension_names


def _labels(config: OutputConfig, model_directory: Path) -> tuple[str, ...]:
    if not config.labels:
        return ()
    from core_grpc.processing.labels import labels_from_file  # noqa: PLC0415 (see _preprocessing)

    return labels_from_file(file_in_model(model_directory, config.labels))


def _preprocessing(config: ModelConfig, inputs: Sequence[TensorSpec]) -> Mapping[str, ImagePreprocessing]:
    tables = [(spec, config.inputs[spec.name].image) for spec in inputs if spec.name in config.inputs]
    if all(table is None for _, table in tables):
        return {}
    # Imaging takes time and memory to import: only where a model wants it.
    from core_grpc.processing.images import image_preprocessing_from_table  # noqa: PLC0415

    return {spec.name: image_preprocessing_from_table(table, spec) for spec, table in tables if table is not None}


def _derived_outputs(config: ModelConfig, outputs: Sequence[TensorSpec], model_directory: Path) -> tuple[DerivedOutput, ...]:
    declared = [(name, item) for name, item in config.outputs.items() if item.source]
    if not declared:
        return ()
    from core_grpc.processing.outputs import derived_output  # noqa: PLC0415 (see _preprocessing)

    sources = {spec.name: spec for spec in outputs}
    derived: list[DerivedOutput] = []
    for name, item in declared:
        if name in sources:
            raise ModelLoadFailed(f"model.toml: [output.{name}] from: the model has this output itself, got {quoted(item.source)}")
        if item.source not in sources:
            raise ModelLoadFailed(f"model.toml: [output.{name}] from: wanted one of {', '.join(sources)}, got {quoted(item.source)}")
        source, labels = sources[item.source], _labels(item, model_directory)
        derived.append(derived_output(name, source, item.apply, labels=labels or source.labels, description=item.description))
    return tuple(derived)
