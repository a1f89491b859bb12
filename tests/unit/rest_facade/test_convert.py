"""Nested numbers: shapes and datatypes."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.tensorgate.v1.inference_pb2 import MODEL_STATE_READY, Model, TensorSpec
from rest_facade.convert import flatten, nest, shortest, tensor_from_body
from rest_facade.errors import FacadeError
from rest_facade.schemas import PredictBody

LIMITS: list[tuple[str, str, Any, list[Any]]] = [
    ("INT8", "int_values", [-128, 127, 1.0], [-129, 128, 0.5]),
    ("INT16", "int_values", [-32768, 32767], [-32769, 32768]),
    ("INT32", "int_values", [-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31]),
    ("INT64", "int64_values", [-(2**63), 2**63 - 1], [-(2**63) - 1, 2**63, 1e30]),
    ("UINT8", "int_values", [0, 255], [-1, 256]),
    ("UINT16", "int_values", [0, 65535], [-1, 65536]),
    ("UINT32", "int64_values", [0, 2**32 - 1], [-1, 2**32]),
    ("UINT64", "uint64_values", [0, 2**64 - 1], [-1, 2**64, math.inf, math.nan]),
    ("FP16", "float_values", [65504, -65504.0, math.inf], [65536, 10**400]),
    ("BF16", "float_values", [3.3e38], [3.4e38, 10**400]),
    ("FP32", "float_values", [3.4e38, -math.inf], [3.5e38, -3.5e38, 10**400]),
    ("FP64", "double_values", [1e308, math.inf], [10**400]),
]


def one_input(datatype: str) -> Model:
    return Model(name="m", version="1", state=MODEL_STATE_READY, inputs=[TensorSpec(name="x", datatype=datatype, shape=[-1])])


@pytest.mark.parametrize(("datatype", "field", "good", "bad"), LIMITS, ids=[row[0] for row in LIMITS])
def test_each_datatype_holds_its_range_and_no_more(datatype: str, field: str, good: list[Any], bad: list[Any]) -> None:
    tensor = tensor_from_body(PredictBody(input=good), one_input(datatype))
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", datatype, [len(good)])
    assert list(getattr(tensor, field)) == pytest.approx(good, rel=1e-6)
    for value in bad:
        with pytest.raises(FacadeError, match=rf"^input\[0\]: wanted a number that {datatype} holds$") as refusal:
            tensor_from_body(PredictBody(input=[value]), one_input(datatype))
        assert refusal.value.code == 3


def test_the_position_of_a_number_out_of_range_in_a_reshaped_input_is_that_of_the_body() -> None:
    with pytest.raises(FacadeError, match=r"^input\[1\]\[0\]: "):
        tensor_from_body(PredictBody(input=[[1, 2], [300, 4]]), one_input("UINT8"))


@given(st.lists(st.integers(0, 4), max_size=4).flatmap(lambda shape: st.tuples(st.just(shape), st.randoms(use_true_random=False))))
def test_nest_undoes_flatten(case: tuple[list[int], Any]) -> None:
    shape, random = case
    flat = [random.randrange(100) for _ in range(math.prod(shape))]
    nested = nest(flat, shape)
    again, nesting = flatten(nested, int)
    assert again == flat
    # An empty list hides the dimensions after it.
    assert nesting == shape[: shape.index(0) + 1 if 0 in shape else None]


@given(st.floats(width=32))
def test_shortest_is_the_same_fp32(value: float) -> None:
    assert struct.pack("<f", shortest(value)) == struct.pack("<f", value)


def test_shortest_is_short() -> None:
    values = [0.1, 0.95, -1.5e-30, 16777216.0]
    assert [shortest(struct.unpack("<f", struct.pack("<f", value))[0]) for value in values] == values
