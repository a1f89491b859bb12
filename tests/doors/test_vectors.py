"""One meaning on every door: the vectors, by real clients, through both transports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.doors import DOORS, HTTP_STATUS, Answer
from tests.support.stack import Stack
from tests.support.vectors import Vector, VectorTensor, load_vectors

GOOD = next(vector for vector in load_vectors("answers") if vector.name == "a full batch")


def _cases(stem: str) -> list[Any]:
    return [
        pytest.param(door, vector, id="-".join([*vector.cases, door, vector.name]))
        for vector in load_vectors(stem)
        for door in DOORS
        if door not in vector.not_on
    ]


@pytest.mark.parametrize(("door", "vector"), _cases("answers"))
def test_answer_is_the_same_on_every_door(stack: Stack, door: str, vector: Vector) -> None:
    assert_answers(DOORS[door](stack.addresses, vector), vector)


@pytest.mark.parametrize(("door", "vector"), _cases("errors"))
def test_error_is_the_same_on_every_door_and_the_next_request_is_right(stack: Stack, door: str, vector: Vector) -> None:
    answer = DOORS[door](stack.addresses, vector)
    assert answer.status in (vector.status, HTTP_STATUS[vector.status]), answer.message
    missing = [word for word in vector.mentions if word not in answer.message]
    assert not missing, f"{answer.message!r} does not mention {missing}"
    assert "\n" not in answer.message
    assert "Traceback" not in answer.message
    assert_answers(DOORS[door](stack.addresses, GOOD), GOOD)


def test_every_exemption_names_a_door() -> None:
    for vector in [*load_vectors("answers"), *load_vectors("errors")]:
        assert set(vector.not_on) <= set(DOORS), vector.name


def assert_answers(answer: Answer, vector: Vector) -> None:
    """The answer is what the vector expects, in its order."""
    assert answer.status == "OK", answer.message
    assert list(answer.outputs) == [item.name for item in vector.expect]
    for item in vector.expect:
        datatype, shape, values = answer.outputs[item.name]
        if datatype:
            assert (datatype, list(shape)) == (item.datatype, item.shape)
        np.testing.assert_array_equal(_typed(item, values), item.array())


def _typed(item: VectorTensor, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if item.datatype == "BYTES":
        texts = np.empty(len(values), dtype=object)
        texts[:] = [value.encode() if isinstance(value, str) else value for value in values.tolist()]
        return texts
    return np.array([int(value) if isinstance(value, str) else value for value in values.tolist()], dtype=item.array().dtype)
