"""Reads what model.toml says of a Python model, and makes its instances.

``[python]`` options:

* ``decoupled = false``: whether ``execute`` is a generator that answers a request any number of times;
* ``timeout_s = 300``: how long an execution, or the wait for a decoupled model's next answer, may take;
* ``start_timeout_s = 60``: how long importing and initialising may take;
* ``environment = []``: names of environment variables that the model's process may see, besides a few harmless ones;
* ``[python.parameters]``: whatever ``initialise`` wants to be told.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core_grpc.backends.base import (
    ON_CPU,
    EngineTraits,
    Gpus,
    LoadedDecoupledModel,
    LoadedRequestModel,
    ModelSource,
    Placement,
)
from core_grpc.backends.declared import with_batch_name
from core_grpc.backends.gpus import visible_gpus
from core_grpc.backends.python.decoupled_instance import CREDITS, DecoupledPythonInstance
from core_grpc.backends.python.process import ProcessOrder
from core_grpc.backends.python.unary_instance import UnaryInstance
from core_grpc.backends.python.user_model import MODEL_FILE
from core_grpc.errors import ModelLoadFailed

_OPTIONS = ("decoupled", "timeout_s", "start_timeout_s", "environment", "parameters")
_LONGEST_S = 86_400


@dataclass(frozen=True, slots=True)
class _Options:
    decoupled: bool
    timeout_s: float
    start_timeout_s: float
    environment: tuple[str, ...]
    parameters: Mapping[str, Any]


class _PythonModel:
    """What both kinds of loaded model share."""

    def __init__(self, source: ModelSource, options: _Options, has_batch_dimension: bool) -> None:
        # Requests of a decoupled model are never joined: a variable first dimension is no batch there, unless model.toml says so.
        named = source.max_batch_size if options.decoupled else True
        self.inputs = tuple(map(with_batch_name, source.declared_inputs)) if named else source.declared_inputs
        self.outputs = tuple(map(with_batch_name, source.declared_outputs)) if named else source.declared_outputs
        self._source = source
        self._options = options
        self._has_batch_dimension = has_batch_dimension
        self._instances = itertools.count()

    def close(self) -> None:
        """Instances own everything."""

    def _order(self, placement: Placement) -> ProcessOrder:
        source, options, instance = self._source, self._options, next(self._instances)
        outputs = [{"name": item.name, "datatype": item.datatype.value, "shape": item.shape} for item in self.outputs]
        first_message = {
            "name": source.name,
            "version": source.version,
            "directory": str(source.directory),
            "parameters": options.parameters,
            "inputs": [item.name for item in self.inputs],
            "outputs": outputs,
            "instance": instance,
            "kind": placement.kind,
            "device_id": placement.device_id,
            "cores": placement.cores,
            "decoupled": options.decoupled,
            "has_batch_dimension": self._has_batch_dimension,
            "credits": CREDITS,
        }
        name = f"{source.name}/{source.version}/{instance}"
        return ProcessOrder(name, first_message, options.environment, options.start_timeout_s)


class _UnaryPythonModel(_PythonModel):
    def create_instance(self, placement: Placement = ON_CPU) -> UnaryInstance:
        return UnaryInstance(self._source.name, self._order(placement), self._options.timeout_s)


class _DecoupledPythonModel(_PythonModel):
    async def start_instance(self, placement: Placement = ON_CPU) -> DecoupledPythonInstance:
        instance = DecoupledPythonInstance(self._source.name, self._order(placement), self._options.timeout_s)
        await instance.start()
        return instance


class PythonBackend:
    """See the module's text."""

    platform = "python"
    traits = EngineTraits()

    def gpus(self) -> Gpus:
        """The machine's: what user code makes of its number is its own affair."""
        return Gpus(visible_gpus(), "this machine has no GPU")

    def load(self, source: ModelSource) -> LoadedRequestModel | LoadedDecoupledModel:
        """Reads the declared tensors and the options; ``model.py`` itself is read when an instance is made.

        Raises:
            ModelLoadFailed: model.py is missing, no output is declared, or an option is wrong.
        """
        if not (source.directory / MODEL_FILE).is_file():
            raise ModelLoadFailed(f"no {MODEL_FILE} in the version directory")
        if not source.declared_outputs:
            raise ModelLoadFailed("model.toml: the python backend needs at least one [output.NAME] with datatype and shape, got none")
        options = _options(source.options)
        tensors = (*source.declared_inputs, *source.declared_outputs)
        has_batch_dimension = bool(source.declared_inputs) and all(item.shape[:1] == (-1,) for item in tensors)
        kind = _DecoupledPythonModel if options.decoupled else _UnaryPythonModel
        return kind(source, options, has_batch_dimension and source.max_batch_size != 0)


def _options(given: Mapping[str, Any]) -> _Options:
    for key in given:
        if key not in _OPTIONS:
            raise ModelLoadFailed(f"model.toml: [python] {key}: no such option; it has {', '.join(_OPTIONS)}")
    decoupled, environment, parameters = given.get("decoupled", False), given.get("environment", []), given.get("parameters", {})
    if not isinstance(decoupled, bool):
        raise ModelLoadFailed(f"model.toml: [python] decoupled: wanted true or false, got {decoupled!r}")
    if not isinstance(environment, list) or not all(isinstance(name, str) for name in environment):
        raise ModelLoadFailed(f"model.toml: [python] environment: wanted a list of names, got {environment!r}")
    if not isinstance(parameters, dict):
        raise ModelLoadFailed(f"model.toml: [python.parameters]: wanted a table, got {parameters!r}")
    timeout_s, start_timeout_s = _seconds(given, "timeout_s", 300.0), _seconds(given, "start_timeout_s", 60.0)
    return _Options(decoupled, timeout_s, start_timeout_s, tuple(environment), parameters)


def _seconds(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_S:
        raise ModelLoadFailed(f"model.toml: [python] {key}: wanted seconds up to {_LONGEST_S}, got {value!r}")
    return float(value)
