"""The table ``[input.X.image]``, and crops and scales against the plain way to do them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from core_grpc.errors import InvalidArgument, ModelLoadFailed
from core_grpc.processing.images import ImagePreprocessing, image_preprocessing_from_table, preprocess_image
from core_grpc.types import Array, Datatype, TensorSpec

EXACT = {"resize": "exact"}
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "nearest": Image.Resampling.NEAREST}


def spec(*shape: int, datatype: Datatype = Datatype.FP32) -> TensorSpec:
    return TensorSpec("pixels", datatype, shape)


def recipe(table: dict[str, Any], *shape: int, datatype: Datatype = Datatype.FP32) -> ImagePreprocessing:
    return image_preprocessing_from_table(table, spec(*shape, datatype=datatype))


def png(pixels: Array) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def noise(height: int, width: int) -> Array:
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def scaled(pixels: Array, width: int, height: int, interpolation: str) -> Array:
    """Pillow's filter, along rows and then along columns."""
    image, resample = Image.fromarray(np.ascontiguousarray(pixels)), RESAMPLING[interpolation]
    return np.asarray(image.resize((width, image.height), resample).resize((width, height), resample))


def test_defaults_come_from_the_input() -> None:
    assert recipe(EXACT, -1, 3, 8, 10) == ImagePreprocessing(
        resize="exact",
        height=8,
        width=10,
        crop_fraction=1.0,
        shorter_side=0,
        interpolation="bilinear",
        color="RGB",
        layout="NCHW",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        datatype=Datatype.FP32,
    )
    grey = recipe(EXACT, -1, 8, 10, 1, datatype=Datatype.UINT8)
    assert (grey.layout, grey.color, grey.height, grey.width) == ("NHWC", "grayscale", 8, 10)


def test_variable_dimensions_are_declared() -> None:
    declared = recipe({"resize": "exact", "size": [20, 30], "layout": "NCHW", "color": "BGR"}, -1, -1, -1, -1)
    assert (declared.height, declared.width, declared.color, declared.layout) == (20, 30, "BGR", "NCHW")
    assert preprocess_image(png(noise(5, 5)), declared, 100).shape == (3, 20, 30)


@pytest.mark.parametrize(
    ("table", "shape", "message"),
    [
        ({}, (-1, 3, 8, 8), "resize wants one of crop_then_resize, shorter_side, exact, got nothing"),
        ({"resize": "fit"}, (-1, 3, 8, 8), "resize wants one of crop_then_resize, shorter_side, exact, got 'fit'"),
        ({"resize": ["exact"]}, (-1, 3, 8, 8), "resize wants one of crop_then_resize, shorter_side, exact, got ['exact']"),
        (
            EXACT | {"stdev": 1},
            (-1, 3, 8, 8),
            "stdev is unknown, wanted one of resize, size, crop_fraction, shorter_side, interpolation, color, layout, mean, std",
        ),
        (EXACT | {"interpolation": "lanczos"}, (-1, 3, 8, 8), "interpolation wants one of nearest, bilinear, bicubic, got 'lanczos'"),
        (EXACT, (3, 8, 8), "wants an input of 4 dimensions and FP32, FP16 or UINT8, got FP32 [3, 8, 8]"),
        (EXACT, (-1, 3, 8, 3), "layout wants NCHW or NHWC: the input's shape [-1, 3, 8, 3] does not tell"),
        (EXACT, (-1, 4, 8, 8), "layout wants NCHW or NHWC: the input's shape [-1, 4, 8, 8] does not tell"),
        (EXACT | {"layout": "CHW"}, (-1, 3, 8, 8), "layout wants one of NCHW, NHWC, got 'CHW'"),
        (EXACT | {"color": "grayscale"}, (-1, 3, 8, 8), "color wants a colour of 3 channels (NCHW input), got grayscale of 1"),
        (EXACT | {"layout": "NHWC"}, (-1, 3, 8, 8), "color wants a colour of 8 channels (NHWC input), got RGB of 3"),
        (EXACT, (-1, 3, -1, 8), "size wants [height, width], 1 to 16384 each, got [-1, 8]"),
        (EXACT | {"size": 224}, (-1, 3, -1, -1), "size wants [height, width], 1 to 16384 each, got 224"),
        (EXACT | {"size": [8, True]}, (-1, 3, -1, -1), "size wants [height, width], 1 to 16384 each, got [8, True]"),
        (EXACT | {"size": [9, 8]}, (-1, 3, 8, 8), "size wants the input's [8, 8], got [9, 8]"),
        (EXACT | {"crop_fraction": 0.5}, (-1, 3, 8, 8), "crop_fraction is for resize crop_then_resize, got resize exact"),
        (
            {"resize": "crop_then_resize", "crop_fraction": 1.5},
            (-1, 3, 8, 8),
            "crop_fraction wants a number above 0 and at most 1, got 1.5",
        ),
        ({"resize": "shorter_side"}, (-1, 3, 8, 12), "shorter_side wants pixels, 12 to 16384, got None"),
        ({"resize": "shorter_side", "shorter_side": 11}, (-1, 3, 8, 12), "shorter_side wants pixels, 12 to 16384, got 11"),
        (EXACT | {"shorter_side": 8}, (-1, 3, 8, 8), "shorter_side is for resize shorter_side, got resize exact"),
        (EXACT | {"mean": [1, 2]}, (-1, 3, 8, 8), "mean wants a number or 3 of them, got [1, 2]"),
        (EXACT | {"mean": "127"}, (-1, 3, 8, 8), "mean wants a number or 3 of them, got '127'"),
        (EXACT | {"mean": float("nan")}, (-1, 3, 8, 8), "mean wants a number or 3 of them, got nan"),
        (EXACT | {"std": [1, 0, 1]}, (-1, 3, 8, 8), "std wants numbers other than 0, got [1, 0, 1]"),
    ],
)
def test_a_wrong_table_is_refused_by_its_key(table: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        recipe(table, *shape)
    assert caught.value.message == f"[input.pixels.image] {message}"


def test_pixels_of_a_uint8_input_are_not_normalised() -> None:
    with pytest.raises(ModelLoadFailed, match=r"^\[input.pixels.image\] mean is for floating-point inputs, got a UINT8 input"):
        recipe(EXACT | {"mean": 127}, -1, 3, 8, 8, datatype=Datatype.UINT8)
    with pytest.raises(ModelLoadFailed, match="got INT32"):
        recipe(EXACT, -1, 3, 8, 8, datatype=Datatype.INT32)


def test_normalisation_channel_by_channel() -> None:
    pixels = noise(6, 7)
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    row = preprocess_image(png(pixels), recipe(EXACT | {"mean": mean, "std": std}, -1, 6, 7, 3), 100)
    np.testing.assert_allclose(row, (pixels - np.array(mean)) / np.array(std), rtol=1e-5, atol=1e-6)
    swapped = preprocess_image(png(pixels), recipe(EXACT | {"color": "BGR", "mean": mean, "std": std}, -1, 3, 6, 7), 100)
    expected = (pixels[:, :, ::-1] - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(swapped, expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP16, Datatype.UINT8])
def test_datatypes(datatype: Datatype) -> None:
    pixels = noise(4, 4)
    row = preprocess_image(png(pixels), recipe(EXACT, -1, 3, 4, 4, datatype=datatype), 100)
    assert row.dtype == datatype.dtype
    assert row.flags.c_contiguous
    assert row.flags.writeable
    np.testing.assert_array_equal(row, pixels.transpose(2, 0, 1))


def test_the_centre_square_is_what_the_published_recipe_cuts() -> None:
    pixels = noise(301, 450)
    row = preprocess_image(
        png(pixels),
        recipe({"resize": "crop_then_resize", "crop_fraction": 0.875, "interpolation": "bicubic"}, -1, 224, 224, 3),
        10**6,
    )
    side = int(224 / 256 * 301)
    left, top = (450 - side) // 2, (301 - side) // 2
    np.testing.assert_array_equal(row, scaled(pixels[top : top + side, left : left + side], 224, 224, "bicubic"))


@pytest.mark.parametrize(("height", "width", "box"), [(40, 100, (0, 10, 40, 90)), (100, 40, (40, 0, 60, 40)), (20, 40, (0, 0, 20, 40))])
def test_a_crop_has_the_proportions_of_the_input(height: int, width: int, box: tuple[int, int, int, int]) -> None:
    pixels = noise(height, width)
    row = preprocess_image(png(pixels), recipe({"resize": "crop_then_resize"}, -1, 10, 20, 3), 10**6)
    top, left, bottom, right = box
    np.testing.assert_array_equal(row, scaled(pixels[top:bottom, left:right], 20, 10, "bilinear"))


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    shorter_side=st.integers(10, 40),
    size=st.tuples(st.integers(1, 10), st.integers(1, 10)),
)
def test_shorter_side_equals_scaling_the_whole_and_cropping(
    height: int, width: int, interpolation: str, shorter_side: int, size: tuple[int, int]
) -> None:
    pixels = noise(height, width)
    table = {"resize": "shorter_side", "shorter_side": shorter_side, "interpolation": interpolation, "layout": "NHWC"}
    row = preprocess_image(png(pixels), recipe(table, -1, *size, 3), 10**6)
    whole_width, whole_height = (shorter_side * side // min(height, width) for side in (width, height))
    whole = scaled(pixels, whole_width, whole_height, interpolation)
    top, left = round((whole_height - size[0]) / 2), round((whole_width - size[1]) / 2)
    plain = whole[top : top + size[0], left : left + size[1]].astype(int)
    # Pillow keeps a box in single precision, so a value between two levels may round either way; a shift by a pixel is 80 levels here.
    assert np.abs(row - plain).max() <= 2


@pytest.mark.parametrize(("height", "width"), [(60, 40), (40, 60)])
def test_rows_are_filtered_before_columns_whatever_the_shape(height: int, width: int) -> None:
    pixels = noise(height, width)
    row = preprocess_image(png(pixels), recipe(EXACT | {"interpolation": "bicubic"}, -1, 22, 22, 3), 10**6)
    np.testing.assert_array_equal(row, scaled(pixels, 22, 22, "bicubic"))
    transposed = scaled(pixels.transpose(1, 0, 2), 22, 22, "bicubic").transpose(1, 0, 2)
    assert (row != transposed).any()


def test_a_long_strip_is_scaled_without_being_made_huge() -> None:
    """Scaled whole it would have 256 x 8 million pixels."""
    strip = np.zeros((2, 60_000, 3), np.uint8)
    strip[:, 30_000:] = 255
    row = preprocess_image(png(strip), recipe({"resize": "shorter_side", "shorter_side": 256}, -1, 224, 224, 3), 10**6)
    assert (row[0, 0, 0], row[0, -1, 0]) == (0, 255)


@pytest.mark.parametrize(
    "resize", [{"resize": "crop_then_resize", "crop_fraction": 0.01}, EXACT, {"resize": "shorter_side", "shorter_side": 8}]
)
def test_one_pixel_is_enough(resize: dict[str, Any]) -> None:
    row = preprocess_image(png(np.full((1, 1, 3), 77, np.uint8)), recipe(resize, -1, 3, 8, 8), 1)
    np.testing.assert_array_equal(row, np.full((3, 8, 8), 77, np.float32))


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="an encoded image"):
        preprocess_image(b"no image", recipe(EXACT, -1, 3, 8, 8), 100)
