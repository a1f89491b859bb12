"""Which optimization profile runs a batch."""

from __future__ import annotations

import pytest

from core_grpc.backends.cuda.profiles import Profile, Shape, ShapeRange, choose_profile
from core_grpc.errors import InvalidArgument

SMALL = Profile({"X": ShapeRange((1, 4), (1, 8), (4, 16))})
LARGE = Profile({"X": ShapeRange((1, 4), (32, 8), (64, 16))})
LONG = Profile({"X": ShapeRange((1, 17), (8, 64), (8, 256))})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 8), 0), ((4, 16), 1), ((5, 8), 1), ((4, 8), 0), ((8, 8), 1), ((64, 16), 1), ((8, 17), 2), ((1, 256), 2)],
)
def test_the_nearest_that_allows_it(shape: Shape, expected: int) -> None:
    assert choose_profile([SMALL, LARGE, LONG], {"X": shape}) == expected


def test_of_equals_the_first() -> None:
    assert choose_profile([LARGE, LARGE], {"X": (2, 8)}) == 0


@pytest.mark.parametrize("shape", [(65, 8), (0, 8), (1, 3), (1, 257), (9, 17), (8,), (1, 8, 1)])
def test_outside_every_profile_the_ranges_are_named(shape: Shape) -> None:
    with pytest.raises(InvalidArgument) as caught:
        choose_profile([SMALL, LONG], {"X": shape})
    got = ",".join(map(str, shape))
    assert caught.value.message == f"input 'X': wanted a shape from [1,4] to [4,16] or [1,17] to [8,256], got [{got}]"


def test_inputs_that_no_profile_allows_together() -> None:
    one = Profile({"A": ShapeRange((1,), (1,), (1,)), "B": ShapeRange((1,), (1,), (1,))})
    two = Profile({"A": ShapeRange((2,), (2,), (2,)), "B": ShapeRange((2,), (2,), (2,))})
    assert choose_profile([one, two], {"A": (2,), "B": (2,)}) == 1
    with pytest.raises(InvalidArgument, match=r"inputs: wanted shapes that one optimization profile allows together, got A \[1\], B \[2\]"):
        choose_profile([one, two], {"A": (1,), "B": (2,)})


def test_an_input_without_a_range_may_have_any_shape() -> None:
    assert choose_profile([Profile()], {"X": (3, 7)}) == 0
    assert choose_profile([SMALL], {"X": (1, 8), "other": (9, 9, 9)}) == 0
