"""Stacking and cutting are inverse, copy nothing they need not, and never mix rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_grpc.errors import BackendFailed
from core_grpc.scheduler.batch import unstack
from core_grpc.scheduler.batch_buffers import BatchBuffers
from core_grpc.types import Array, Datatype


def some_array(datatype: Datatype, shape: tuple[int, ...], seed: int) -> Array:
    numbers = np.random.default_rng(seed).integers(0, 100, shape)
    if datatype is Datatype.BYTES:
        texts = np.empty(shape, dtype=object)
        texts.reshape(-1)[:] = [b"x" * int(n) for n in numbers.reshape(-1)]
        return texts
    return numbers.astype(datatype.dtype)


@given(
    datatype=st.sampled_from(list(Datatype)),
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    rest=st.lists(st.integers(0, 3), max_size=2),
    seed=st.integers(0, 1000),
)
def test_unstack_is_the_inverse_of_stack(datatype: Datatype, rows: list[int], rest: list[int], seed: int) -> None:
    members = [{"A": some_array(datatype, (n, *rest), seed + i), "B": np.full((n,), i)} for i, n in enumerate(rows)]
    batch = BatchBuffers().stack(members)
    assert batch["A"].dtype == datatype.dtype
    parts = unstack(batch, rows)
    assert len(parts) == len(members)
    for part, member in zip(parts, members, strict=True):
        for name, array in member.items():
            np.testing.assert_array_equal(part[name], array, strict=True)


def test_one_request_is_not_copied() -> None:
    member = {"X": np.zeros((3, 2), dtype=np.float32)}
    assert BatchBuffers().stack([member]) is member
    assert unstack(member, [3])[0] is member


def test_a_batch_lies_where_the_one_before_lay_and_answers_never_do() -> None:
    buffers = BatchBuffers()
    large = [{"X": np.full((2, 5000), value, np.float32)} for value in (1, 2)]
    first = buffers.stack(large)["X"]
    kept = buffers.owned({"same": first, "part": first[1:3], "other": first + 1})
    second = buffers.stack([large[1], {"X": np.full((1, 5000), 7, np.float32)}])["X"]
    assert np.shares_memory(first, second)
    assert second[:, 0].tolist() == [2, 2, 7]
    assert [kept[name][:, 0].tolist() for name in kept] == [[1, 1, 2, 2], [1, 2], [2, 2, 3, 3]]
    wider = buffers.stack([{"X": np.full((3, 9000), value, np.int64)} for value in (3, 4)])["X"]
    assert (wider.shape, wider.dtype.name, wider[:, 0].tolist()) == ((6, 9000), "int64", [3, 3, 3, 4, 4, 4])
    lone = {"X": np.zeros((1, 5000), np.float32)}
    assert buffers.owned(buffers.stack([lone]))["X"] is lone["X"]


def test_parts_are_views() -> None:
    outputs = {"Y": np.arange(6).reshape(3, 2)}
    assert all(np.shares_memory(part["Y"], outputs["Y"]) for part in unstack(outputs, [1, 2]))


def test_dtypes_are_never_cast_silently() -> None:
    with pytest.raises(TypeError):
        BatchBuffers().stack([{"X": np.zeros((1, 2), np.float32)}, {"X": np.zeros((1, 2), np.int32)}])
    with pytest.raises(TypeError):
        BatchBuffers().stack([{"X": np.zeros((1, 2), np.float32)}, {"X": np.zeros((1, 2), ml_dtypes.bfloat16)}])


@pytest.mark.parametrize("shape", [(), (1, 4), (4, 4)])
def test_output_without_the_batch_dimension_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(BackendFailed, match=r"output 'Y': wanted 3 rows"):
        unstack({"X": np.zeros((3, 1)), "Y": np.zeros(shape)}, [1, 1, 1])
