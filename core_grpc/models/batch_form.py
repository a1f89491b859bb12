"""What model.toml says about a model's batches (``[input.NAME.padding]``, ``allowed_batch_sizes``), held against its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.model_config import ModelConfig, PaddingConfig
from core_grpc.scheduler.padding import BatchForm, InputPadding
from core_grpc.types import Datatype, TensorSpec


def batch_form(
    config: ModelConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, max_batch_size: int, takes_requests: bool
) -> BatchForm:
    """The form; ``takes_requests`` is whether the model is handed requests one beside the other, which need no filling up.

    Raises:
        ModelLoadFailed: padding that the model cannot have.
    """
    tables = {name: item.padding for name, item in config.inputs.items() if item.padding is not None}
    if takes_requests and (tables or config.batching.allowed_batch_sizes):
        raise ModelLoadFailed("model.toml: padding and allowed_batch_sizes are for engines; a model in Python sees each request as it came")
    if tables and not max_batch_size:
        raise ModelLoadFailed("model.toml: padding: wanted none, because the model has no batch dimension")
    specs = {spec.name: spec for spec in inputs}
    padding = {name: _input_padding(specs[name], table) for name, table in tables.items()}
    return BatchForm(padding, _cuts(padding, outputs), config.batching.allowed_batch_sizes)


def _input_padding(spec: TensorSpec, table: PaddingConfig) -> InputPadding:
    where = f"model.toml: [input.{spec.name}.padding]"
    names = spec.dimension_names or ("",) * len(spec.shape)
    axes = {axis: names[axis] for axis, size in enumerate(spec.shape) if axis and size == -1}
    if not axes:
        raise ModelLoadFailed(f"{where}: wanted an input with a variable dimension beside the batch's, got shape {list(spec.shape)}")
    if spec.datatype is Datatype.BYTES:
        if table.value not in (0, ""):
            raise ModelLoadFailed(f"{where} value: wanted nothing for BYTES, which are filled up with empty ones, got {table.value!r}")
        return InputPadding(b"", table.sizes, axes)
    if isinstance(table.value, str) or not _fits(spec.datatype, table.value):
        raise ModelLoadFailed(f"{where} value: wanted a value of {spec.datatype}, got {table.value!r}")
    return InputPadding(table.value, table.sizes, axes)


def _fits(datatype: Datatype, value: float) -> bool:
    try:
        return bool(datatype.dtype.type(value) == value) or not np.issubdtype(datatype.dtype, np.integer)
    except OverflowError:
        return False


def _cuts(padding: Mapping[str, InputPadding], outputs: Sequence[TensorSpec]) -> Mapping[str, Mapping[int, str]]:
    """The outputs' dimensions that follow a padded one. One that may or may not would show padding to the caller."""
    if not padding:
        return {}
    named = {name for item in padding.values() for name in item.axes.values() if name}
    cuts: dict[str, Mapping[int, str]] = {}
    for spec in outputs:
        names = spec.dimension_names or ("",) * len(spec.shape)
        variable = {axis: names[axis] for axis, size in enumerate(spec.shape) if axis and size == -1}
        for axis, name in variable.items():
            if not name:
                candidates = ", ".join(sorted(named)) or "those have no names either"
                raise ModelLoadFailed(
                    f"model.toml: [output.{spec.name}] dimension_names: wanted a name for the variable dimension {axis}: that "
                    f"of the padded input's dimension which it follows ({candidates}), or another one"
                )
        if following := {axis: name for axis, name in variable.items() if name in named}:
            cuts[spec.name] = following
    return cuts
