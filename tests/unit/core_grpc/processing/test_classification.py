"""Classification: the best classes of each row, in Triton's words."""

from __future__ import annotations

import numpy as np
import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.processing.classification import class_count, classified
from core_grpc.types import Array, Datatype, ModelSpec, ParameterValue, Tensor, TensorSpec

LABELS = ("cat", "dog", "owl", "elk")


def texts(datatype: Datatype, values: Array, count: int, labels: tuple[str, ...] = (), *, has_batch_dimension: bool = True) -> list[object]:
    tensor = classified(Tensor(datatype, values), labels, count, has_batch_dimension=has_batch_dimension)
    assert tensor.datatype is Datatype.BYTES
    found: list[object] = tensor.array.tolist()
    return found


def test_the_best_first_with_their_labels() -> None:
    row = np.array([[0.1, 0.6, 0.2, 0.1]], np.float32)
    assert texts(Datatype.FP32, row, 2, LABELS) == [[b"0.600000:1:dog", b"0.200000:2:owl"]]


def test_of_equal_values_the_lower_index_is_first() -> None:
    row = np.array([[2, 7, 2, 7]], np.int32)
    assert texts(Datatype.INT32, row, 4) == [[b"7:1", b"7:3", b"2:0", b"2:2"]]


def test_more_than_there_are_gives_all() -> None:
    assert len(texts(Datatype.FP32, np.ones((1, 4), np.float32), 5, LABELS)[0]) == 4  # type: ignore[arg-type]


def test_rows_are_apart_and_further_dimensions_are_one_row_of_classes() -> None:
    batch = np.array([[[1, 2], [3, 4]], [[8, 7], [6, 5]]], np.uint8)
    assert texts(Datatype.UINT8, batch, 1) == [[b"4:3"], [b"8:0"]]
    assert texts(Datatype.UINT8, batch, 1, has_batch_dimension=False) == [b"8:4"]


def test_a_class_beyond_the_labels_has_none() -> None:
    assert texts(Datatype.FP64, np.array([[1.0, 2.0]]), 2, ("only",)) == [[b"2.000000:1", b"1.000000:0:only"]]


def test_extreme_values_are_ordered() -> None:
    row = np.array([[np.nan, -np.inf, np.inf, 0.0]])
    assert texts(Datatype.FP64, row, 4) == [[b"inf:2", b"0.000000:3", b"nan:0", b"-inf:1"]]
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert texts(Datatype.INT64, np.array([[lowest, highest]]), 2) == [[f"{highest}:1".encode(), f"{lowest}:0".encode()]]
    assert texts(Datatype.UINT64, np.array([[0, (1 << 64) - 1]], np.uint64), 1) == [[b"18446744073709551615:1"]]


def test_no_rows_and_no_classes_are_no_texts() -> None:
    assert classified(Tensor(Datatype.FP32, np.ones((0, 4), np.float32)), (), 2, has_batch_dimension=True).array.shape[0] == 0
    assert classified(Tensor(Datatype.FP32, np.ones((2, 0), np.float32)), (), 2, has_batch_dimension=True).array.shape == (2, 0)


def spec(datatype: Datatype) -> ModelSpec:
    output = TensorSpec("Y", datatype, (-1, 4))
    return ModelSpec("m", "1", "identity", 8, (output,), (output,))


@pytest.mark.parametrize("wanted", [-1, "2", True, 1.5])
def test_what_is_no_count_is_refused(wanted: ParameterValue) -> None:
    with pytest.raises(InvalidArgument, match="output 'Y' classification: wanted the number of classes"):
        class_count("Y", {"classification": wanted}, spec(Datatype.FP32))


@pytest.mark.parametrize("datatype", [Datatype.BYTES, Datatype.BOOL, Datatype.FP16, Datatype.BF16])
def test_datatypes_without_classes_are_refused(datatype: Datatype) -> None:
    with pytest.raises(InvalidArgument, match=f"class result not available for output 'Y' due to unsupported type {datatype}"):
        class_count("Y", {"classification": 1}, spec(datatype))
    assert class_count("Y", {"classification": 0}, spec(datatype)) == 0
    assert class_count("Y", {}, spec(datatype)) == 0
