"""``[[step]]`` of model.toml.

::

    [[step]]
    model = "detect"
    version = 2                        # the newest that is ready where it is left out
    inputs = { x = "page" }            # the model's input = the pipeline's tensor
    outputs = { scores = "map" }       # the model's output = the pipeline's tensor
"""

from __future__ import annotations

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.config_table import ConfigTable
from core_grpc.pipelines.step import Step

_LARGEST_VERSION = 10**18 - 1


def read_steps(top: ConfigTable) -> tuple[Step, ...]:
    """The steps of the file whose top table this is.

    Raises:
        ModelLoadFailed: something in them is unknown or wrong.
    """
    value = top.take("step", [])
    if not isinstance(value, list):
        raise top.failure("step", "[[step]], with two brackets, for each step")
    return tuple(_step(ConfigTable(f"{top.where}: [[step]] {position}", item)) for position, item in enumerate(value, 1))


def _step(table: ConfigTable) -> Step:
    if not (model := table.text("model")):
        raise ModelLoadFailed(f"{table.where} model: wanted the name of a model, got nothing")
    version = str(table.integer("version", 0, 0, _LARGEST_VERSION)) if "version" in table else ""
    step = Step(model, version, _tensors(table, "inputs"), _tensors(table, "outputs"))
    table.finish()
    return step


def _tensors(table: ConfigTable, key: str) -> dict[str, str]:
    inner = table.table(key)
    tensors = {name: inner.text(name) for name in inner.take_all()}
    if unnamed := [name for name, tensor in tensors.items() if not tensor]:
        raise inner.failure(unnamed[0], "the name of a tensor")
    return tensors
