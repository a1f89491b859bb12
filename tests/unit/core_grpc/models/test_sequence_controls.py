"""The inputs that the server fills in for models that take sequences."""

from __future__ import annotations

from typing import Any

import pytest

from core_grpc.errors import InvalidArgument, ModelLoadFailed
from core_grpc.models.sequence_config import KINDS, SequenceConfig
from core_grpc.models.sequence_controls import SequenceControls, sequence_call
from core_grpc.types import Array, Datatype, ParameterValue, TensorSpec

NAMES = {"start": "START", "ready": "READY", "end": "END", "correlation_id": "CORRID"}


def controls(
    id_type: Datatype = Datatype.UINT64, shape: tuple[int, ...] = (-1, 1), *, has_batch_dimension: bool = True
) -> SequenceControls:
    types = (Datatype.INT32, Datatype.FP32, Datatype.BOOL, id_type)
    specs = [TensorSpec(name, datatype, shape) for name, datatype in zip(NAMES.values(), types, strict=True)]
    return SequenceControls(SequenceConfig(NAMES, 1.0), specs, has_batch_dimension=has_batch_dimension)


def added(made: SequenceControls, rows: int = 1, **parameters: ParameterValue) -> dict[str, Array]:
    return made.filled(sequence_call(parameters), rows)


def values(arrays: dict[str, Array]) -> list[Any]:
    return [arrays[name].reshape(-1).tolist() for name in NAMES.values()]


def test_each_request_of_a_sequence_gets_its_values_for_every_row() -> None:
    made = controls()
    assert tuple(NAMES) == KINDS
    assert made.names == set(NAMES.values())
    first = added(made, 2, sequence_id=7, sequence_start=True)
    assert set(first) == set(NAMES.values())
    assert [(first[name].shape, first[name].dtype.name) for name in NAMES.values()] == [
        ((2, 1), "int32"),
        ((2, 1), "float32"),
        ((2, 1), "bool"),
        ((2, 1), "uint64"),
    ]
    assert values(first) == [[1, 1], [1, 1], [False, False], [7, 7]]
    assert values(added(made, sequence_id=7)) == [[0], [1], [False], [7]]
    assert values(added(made, sequence_id=7, sequence_end=True)) == [[0], [1], [True], [7]]


def test_a_model_without_a_batch_dimension_gets_the_declared_shape() -> None:
    made = controls(shape=(1,), has_batch_dimension=False)
    assert added(made, sequence_id=(1 << 64) - 1, sequence_start=True)["CORRID"].tolist() == [(1 << 64) - 1]


def test_an_id_as_bytes() -> None:
    made = controls(Datatype.BYTES)
    assert values(added(made, sequence_id="é", sequence_start=True))[3] == ["é".encode()]
    assert values(added(made, sequence_id=12, sequence_start=True))[3] == [b"12"]


@pytest.mark.parametrize(
    ("sequence_id", "message"),
    [("a", "this model wants a number, got 'a'"), (300, "300 does not fit UINT8"), (1.5, "wanted a non-negative")],
)
def test_an_id_that_the_models_input_cannot_hold_is_refused(sequence_id: ParameterValue, message: str) -> None:
    made = controls(Datatype.UINT8)
    with pytest.raises(InvalidArgument, match=f"parameter 'sequence_id': {message}"):
        added(made, sequence_id=sequence_id, sequence_start=True)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [("start", "NOPE", "start: wanted one of S, got 'NOPE'"), ("ready", "S", "ready: wanted an input of numbers or BOOL, 'S' is BYTES")],
)
def test_a_control_that_the_model_cannot_take_is_refused(kind: str, name: str, message: str) -> None:
    spec = TensorSpec("S", Datatype.BYTES, (-1, 1))
    with pytest.raises(ModelLoadFailed, match=message):
        SequenceControls(SequenceConfig({kind: name}, 1.0), [spec], has_batch_dimension=True)


def test_a_row_of_no_request_is_told_so() -> None:
    assert values(controls().empty()) == [[0], [0], [False], [0]]
    assert values(controls(Datatype.BYTES).empty())[3] == [b""]
