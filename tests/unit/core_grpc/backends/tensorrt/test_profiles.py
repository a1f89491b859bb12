"""Optimization profiles: written, completed, suggested, refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.build.onnx_model import GraphTensor, read_model
from core_grpc.backends.tensorrt.build.profiles import complete_profiles, parse_profile, suggest_profiles
from core_grpc.backends.tensorrt.plan_metadata import ShapeRange

ROOT = Path(__file__).parents[5]
IMAGE = GraphTensor("image", "FLOAT", (-1, 3, -1, -1), ("batch", "", "h", "w"))
IDS = GraphTensor("ids", "INT64", (-1, -1), ("batch", "seq"))
MASK = GraphTensor("mask", "INT64", (-1, -1), ("batch", "seq"))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1x2..3x4..5x6", ShapeRange((1, 2), (3, 4), (5, 6))),
        ("x:1x2..5x6", ShapeRange((1, 2), (5, 6), (5, 6))),
        ("x:7", ShapeRange((7,), (7,), (7,))),
        ("a:b:0x7", ShapeRange((0, 7), (0, 7), (0, 7))),
    ],
)
def test_a_profile_is_read(text: str, shapes: ShapeRange) -> None:
    assert list(parse_profile(text).values()) == [shapes]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "wanted INPUT:MIN..OPT..MAX, got 'x'"),
        ("x:1x2,x:1x2", "input 'x' comes twice"),
        ("x:1..2..3..4", "wanted one to three shapes"),
        ("x:-1x3", "wanted one to three shapes"),
        ("x:1x2..3", "the same number of dimensions"),
        ("x:4..2..8", "axis 0: wanted min <= opt <= max, got 4, 2, 8"),
    ],
)
def test_a_profile_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BuildRefused) as refused:
        parse_profile(text)
    assert reason in str(refused.value)


def test_an_input_that_is_not_named_takes_its_sizes_from_equal_names() -> None:
    (profile,) = complete_profiles([IDS, MASK], [parse_profile("ids:1x8..4x16..8x32")])
    assert profile["mask"] == profile["ids"] == ShapeRange((1, 8), (4, 16), (8, 32))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("other:1x2", "the model has no input 'other'; its inputs are image, ids"),
        ("image:1x3x8", "wanted 4 dimensions (batchx3xhxw), got 3"),
        ("image:1x4x8x8", "axis 1: wanted 3, which is fixed in the model, got 4"),
        ("image:1x3x8x8", "profile 0 says nothing of input 'ids', whose axis 1 (seq) varies"),
        ("image:1x3x8x8,ids:2x8", "gives dimensions named 'batch' different sizes"),
    ],
)
def test_a_profile_that_contradicts_the_model_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BuildRefused) as refused:
        complete_profiles([IMAGE, IDS], [parse_profile(text)])
    assert reason in str(refused.value)


def test_profiles_are_suggested_by_what_dimensions_are() -> None:
    suggestion = suggest_profiles([IMAGE, IDS])
    (profile,) = suggestion.profiles
    assert profile["image"].max == (8, 3, 1024, 1024)
    assert profile["ids"] == ShapeRange((1, 1), (4, 64), (8, 256))
    assert any("a side of an image" in reason for reason in suggestion.reasons)
    assert suggest_profiles([GraphTensor("x", "FLOAT", (1, 4), ("", ""))]).profiles == ()


def test_a_language_model_has_one_for_prompts_and_one_for_tokens() -> None:
    inputs = read_model(ROOT / "bench" / "models" / "tinygpt_char.onnx").inputs
    prefill, decode = suggest_profiles(inputs).profiles
    assert (prefill["input_ids"].max, decode["input_ids"].max) == ((8, 128), (8, 1))
    assert (prefill["past_key_values.0.key"].max, decode["past_key_values.0.key"].max) == ((8, 4, 0, 32), (8, 4, 127, 32))
    # They have no size that the other input of that name has not.
    assert complete_profiles(inputs, [prefill, decode]) == (prefill, decode)
