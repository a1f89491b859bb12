"""The identity backend's outputs and options."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_grpc.backends.base import ModelInstance, ModelSource
from core_grpc.backends.identity import IdentityBackend
from core_grpc.errors import BackendFailed, ModelLoadFailed
from core_grpc.types import Datatype, TensorSpec

X = TensorSpec("X", Datatype.FP32, (-1, 2))
TEXT = TensorSpec("T", Datatype.BYTES, (-1,))


def instance_of(*inputs: TensorSpec, **options: Any) -> ModelInstance:
    return IdentityBackend().load(ModelSource("m", "1", Path(), options, inputs)).create_instance()


def test_outputs_are_the_inputs_themselves() -> None:
    array = np.zeros((1, 2), np.float32)
    assert instance_of(X).execute({"X": array})["Y"] is array


def test_names_of_outputs() -> None:
    model = IdentityBackend().load(ModelSource("m", "1", Path(), {}, (X, TEXT)))
    assert [(spec.name, spec.datatype) for spec in model.outputs] == [("OUTPUT0", Datatype.FP32), ("OUTPUT1", Datatype.BYTES)]
    named = IdentityBackend().load(ModelSource("m", "1", Path(), {"outputs": {"copy": "T", "again": "T"}}, (X, TEXT)))
    assert [(spec.name, spec.datatype) for spec in named.outputs] == [("copy", Datatype.BYTES), ("again", Datatype.BYTES)]


def test_delay() -> None:
    began = time.monotonic()
    instance_of(X, delay_ms=20).execute({"X": np.zeros((1, 2), np.float32)})
    assert time.monotonic() - began >= 0.02


def test_scripted_failure() -> None:
    instance = instance_of(X, fail_value=99)
    instance.execute({"X": np.array([[98, 99]], np.float32)})
    with pytest.raises(BackendFailed, match="scripted failure"):
        instance.execute({"X": np.array([[99, 1]], np.float32)})
    texts = np.array([b"boom"], dtype=object)
    with pytest.raises(BackendFailed):
        instance_of(TEXT, fail_value="boom").execute({"T": texts})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay_ms": -1}, "delay_ms: wanted 0 to 3600000, got -1"),
        ({"delay_ms": True}, "delay_ms"),
        ({"outputs": {"Y": "Z"}}, r"outputs.Y: wanted one of X, got 'Z'"),
        ({"outputs": 3}, "outputs: wanted a table"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelLoadFailed, match=text):
        instance_of(X, **options)


def test_inputs_must_be_declared() -> None:
    with pytest.raises(ModelLoadFailed, match=r"at least one \[input.NAME\]"):
        instance_of()
