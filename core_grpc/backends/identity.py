"""The identity backend: answers with what it was given. It measures and tests everything around an engine.

model.toml declares the inputs (``[input.X]`` with datatype and shape) and, if the names are to differ, ``[identity] outputs``: by
default the only input ``X`` comes back as ``Y``, and of several inputs the i-th as ``OUTPUT<i>``. Outputs are the input arrays
themselves, not copies. Options:

* ``outputs = { Y = "X" }``: output name to input name;
* ``delay_ms = 0``: how long an execution takes;
* ``fail_value = 99``: an execution fails when the first element of a row of the first input equals it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from core_grpc.backends.base import ON_CPU, EngineTraits, Gpus, ModelSource, Placement
from core_grpc.backends.declared import with_batch_name
from core_grpc.errors import BackendFailed, ModelLoadFailed
from core_grpc.types import Array, TensorSpec

_OPTIONS = ("outputs", "delay_ms", "fail_value")


@dataclass(frozen=True, slots=True)
class _IdentityInstance:
    outputs: Mapping[str, str]
    delay_s: float
    fail_value: Any

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.fail_value is not None:
            first = next(iter(inputs.values()))
            if first.size and (first.reshape(first.shape[0] if first.ndim else 1, -1)[:, 0] == self.fail_value).any():
                raise BackendFailed("scripted failure")
        return {output: inputs[name] for output, name in self.outputs.items() if name in inputs}

    def close(self) -> None:
        """Holds nothing."""


@dataclass(frozen=True, slots=True)
class _IdentityModel:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    instance: _IdentityInstance

    def create_instance(self, _placement: Placement = ON_CPU) -> _IdentityInstance:
        return self.instance

    def close(self) -> None:
        """Holds nothing."""


class IdentityBackend:
    """See the module's text."""

    platform = "identity"
    traits = EngineTraits(shares_copy=True)

    def gpus(self) -> Gpus:
        """None."""
        return Gpus(0, "the identity backend computes nothing")

    def load(self, source: ModelSource) -> _IdentityModel:
        """Reads the declared inputs and the options.

        Raises:
            ModelLoadFailed: no input is declared, or an option is wrong.
        """
        if not source.declared_inputs:
            raise ModelLoadFailed("model.toml: the identity backend needs at least one [input.NAME] with datatype and shape, got none")
        for key in source.options:
            if key not in _OPTIONS:
                raise ModelLoadFailed(f"model.toml: [identity] {key}: no such option; it has {', '.join(_OPTIONS)}")
        inputs = tuple(with_batch_name(spec) for spec in source.declared_inputs)
        names = _output_names(source.options, inputs)
        by_name = {spec.name: spec for spec in inputs}
        outputs = tuple(replace(by_name[name], name=output) for output, name in names.items())
        fail_value = source.options.get("fail_value")
        if isinstance(fail_value, str):
            fail_value = fail_value.encode()
        return _IdentityModel(inputs, outputs, _IdentityInstance(names, _delay_s(source.options), fail_value))


def _output_names(options: Mapping[str, Any], inputs: tuple[TensorSpec, ...]) -> Mapping[str, str]:
    names = [spec.name for spec in inputs]
    declared = options.get("outputs")
    if declared is None:
        return {"Y": names[0]} if len(names) == 1 else {f"OUTPUT{i}": name for i, name in enumerate(names)}
    if not isinstance(declared, dict) or not declared:
        raise ModelLoadFailed(f"model.toml: [identity] outputs: wanted a table of output name = input name, got {declared!r}")
    for output, name in declared.items():
        if name not in names:
            raise ModelLoadFailed(f"model.toml: [identity] outputs.{output}: wanted one of {', '.join(names)}, got {name!r}")
    return dict(declared)


def _delay_s(options: Mapping[str, Any]) -> float:
    delay_ms = options.get("delay_ms", 0)
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, int | float) or not 0 <= delay_ms <= 3_600_000:
        raise ModelLoadFailed(f"model.toml: [identity] delay_ms: wanted 0 to 3600000, got {delay_ms!r}")
    return delay_ms / 1000
