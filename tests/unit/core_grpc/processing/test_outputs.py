"""Derived outputs."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.processing.outputs import apply_derived, derived_output, sigmoid, softmax
from core_grpc.types import Array, Datatype, TensorSpec

LOGITS = TensorSpec("logits", Datatype.FP32, (-1, 3), dimension_names=("batch", ""))


def test_softmax_is_row_by_row() -> None:
    rows = softmax(np.array([[0, math.log(3)], [5, 5]], np.float32))
    np.testing.assert_allclose(rows, [[0.25, 0.75], [0.5, 0.5]], rtol=1e-6)
    assert rows.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_softmax_and_sigmoid_do_not_overflow(dtype: type) -> None:
    extreme: Array = np.array([[3e4, -3e4, 3e4]], dtype)
    np.testing.assert_allclose(softmax(extreme), [[0.5, 0, 0.5]], atol=1e-7)
    np.testing.assert_allclose(sigmoid(extreme), [[1, 0, 1]], atol=1e-7)
    assert softmax(extreme).dtype == sigmoid(extreme).dtype == np.float32


def test_what_has_no_answer_is_nan_in_its_row_alone() -> None:
    rows = softmax(np.array([[np.inf, 0], [np.nan, 0], [0, 0]], np.float32))
    assert np.isnan(rows[:2]).all()
    np.testing.assert_array_equal(rows[2], [0.5, 0.5])
    np.testing.assert_array_equal(sigmoid(np.array([np.nan, np.inf, -np.inf], np.float32)), [np.nan, 1, 0])


def test_sigmoid_is_symmetric() -> None:
    x = np.linspace(-20, 20, 101, dtype=np.float32)
    np.testing.assert_allclose(sigmoid(x) + sigmoid(-x), 1, rtol=1e-6)
    np.testing.assert_allclose(sigmoid(x), [1 / (1 + math.exp(-value)) for value in x], rtol=1e-5)


def test_inputs_are_left_alone_and_no_rows_stay_no_rows() -> None:
    scores = np.array([[1, 2]], np.float32)
    scores.flags.writeable = False
    softmax(scores)
    sigmoid(scores)
    assert softmax(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_derived_outputs_come_after_the_models_own() -> None:
    derived = derived_output("probabilities", LOGITS, "softmax", labels=("a", "b", "c"), description="sum to 1")
    outputs = apply_derived({"logits": np.zeros((2, 3), np.float32)}, [derived])
    assert list(outputs) == ["logits", "probabilities"]
    np.testing.assert_allclose(outputs["probabilities"], 1 / 3, rtol=1e-6)
    assert derived.spec == TensorSpec(
        "probabilities", Datatype.FP32, (-1, 3), ("batch", ""), description="sum to 1", labels=("a", "b", "c")
    )


@pytest.mark.parametrize(
    ("source", "apply", "message"),
    [
        (LOGITS, "softmaxx", "[output.p] apply wants one of softmax, sigmoid, got 'softmaxx'"),
        (TensorSpec("label", Datatype.INT64, (-1,)), "softmax", "[output.p] from wants a floating-point output, got label of INT64 [-1]"),
        (TensorSpec("x", Datatype.FP32, ()), "sigmoid", "[output.p] from wants a floating-point output, got x of FP32 []"),
    ],
)
def test_what_cannot_be_derived_is_refused(source: TensorSpec, apply: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        derived_output("p", source, apply)
    assert caught.value.message == message
