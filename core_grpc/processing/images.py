"""Declared image preprocessing: the table ``[input.X.image]`` of model.toml, and what it does to an encoded image.

Order: decode, EXIF orientation, colours (``image_file.py``); crop and resize; ``(pixel - mean) / std`` in FP32 on pixels from 0 to 255;
layout and datatype of the input. docs/image-preprocessing.md has it for users, and tests/vectors/preprocessing.json has numbers for
clients that do it themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from core_grpc.errors import ModelLoadFailed, one_line
from core_grpc.processing.image_file import convert_colors, decode_image
from core_grpc.types import Array, Datatype, TensorSpec

RESIZES = ("crop_then_resize", "shorter_side", "exact")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
COLORS = {"RGB": 3, "BGR": 3, "grayscale": 1}
"""Channels by name."""
LAYOUTS = ("NCHW", "NHWC")
DATATYPES = (Datatype.FP32, Datatype.FP16, Datatype.UINT8)

_KEYS = ("resize", "size", "crop_fraction", "shorter_side", "interpolation", "color", "layout", "mean", "std")


@dataclass(frozen=True, slots=True)
class ImagePreprocessing:
    """How an encoded image becomes one row of an input."""

    resize: str
    """One of ``RESIZES``."""
    height: int
    width: int
    crop_fraction: float
    """``crop_then_resize``: of the largest centred box with the input's proportions, the part that is kept."""
    shorter_side: int
    """``shorter_side``: pixels of the shorter side after scaling; 0 otherwise."""
    interpolation: str
    color: str
    layout: str
    mean: tuple[float, ...]
    """For each channel in the order of ``color``, as ``std``; on pixels from 0 to 255."""
    std: tuple[float, ...]
    datatype: Datatype


def preprocess_image(data: bytes, recipe: ImagePreprocessing, max_pixels: int) -> Array:
    """One row of the input: shape of the spec without its first dimension, C order, the spec's dtype.

    Blocks for milliseconds to seconds; most of it is Pillow, which gives the GIL away.

    Raises:
        InvalidArgument: not an image of a known format, larger than ``max_pixels``, truncated, damaged. The text does not name the input.
    """
    image = _crop(decode_image(data, max_pixels), recipe)
    image = convert_colors(image, "L" if recipe.color == "grayscale" else "RGB")
    return _normalise(np.asarray(_resize(image, recipe)), recipe)


def _crop(image: Image.Image, recipe: ImagePreprocessing) -> Image.Image:
    # Colours are converted pixel by pixel, so cropping first gives the same and costs less.
    if recipe.resize != "crop_then_resize":
        return image
    width, height = image.size
    box_width = min(width, height * recipe.width / recipe.height)
    box_height = min(height, width * recipe.height / recipe.width)
    crop_width = max(1, int(recipe.crop_fraction * box_width))
    crop_height = max(1, int(recipe.crop_fraction * box_height))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return image.crop((left, top, left + crop_width, top + crop_height))


def _resize(image: Image.Image, recipe: ImagePreprocessing) -> Image.Image:
    """To the input's size. A box of the source, resized, has the pixels of the scaled whole, cropped, without the whole being made."""
    left, top, right, bottom = 0.0, 0.0, float(image.width), float(image.height)
    if recipe.resize == "shorter_side":
        left, top, right, bottom = _shorter_side_box(image.width, image.height, recipe)
    # One direction at a time: left to itself Pillow 13 begins with the cheaper one, and sharp pictures then differ by several levels.
    resample = INTERPOLATIONS[recipe.interpolation]
    rows = image.resize((recipe.width, image.height), resample, box=(left, 0, right, image.height))
    return rows.resize((recipe.width, recipe.height), resample, box=(0, top, recipe.width, bottom))


def _shorter_side_box(width: int, height: int, recipe: ImagePreprocessing) -> tuple[float, float, float, float]:
    # The roundings are torchvision's (Resize, CenterCrop), so that recipes published for its models give their numbers.
    shorter = min(width, height)
    scaled_width = recipe.shorter_side * width // shorter
    scaled_height = recipe.shorter_side * height // shorter
    left = round((scaled_width - recipe.width) / 2)
    top = round((scaled_height - recipe.height) / 2)
    across, down = width / scaled_width, height / scaled_height
    return (
        left * across,
        top * down,
        min((left + recipe.width) * across, float(width)),
        min((top + recipe.height) * down, float(height)),
    )


def _normalise(pixels: Array, recipe: ImagePreprocessing) -> Array:
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if recipe.color == "BGR":
        pixels = pixels[:, :, ::-1]
    if recipe.layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    if recipe.datatype is Datatype.UINT8:
        return np.array(pixels, order="C")
    channels = (-1, 1, 1) if recipe.layout == "NCHW" else (1, 1, -1)
    row: Array = np.array(pixels, dtype=np.float32, order="C")
    row -= np.array(recipe.mean, dtype=np.float32).reshape(channels)
    row /= np.array(recipe.std, dtype=np.float32).reshape(channels)
    return row.astype(recipe.datatype.dtype, copy=False)


def image_preprocessing_from_table(table: Mapping[str, Any], spec: TensorSpec) -> ImagePreprocessing:
    """The recipe that ``[input.X.image]`` declares for the input ``spec``.

    Raises:
        ModelLoadFailed: an unknown key, a value of the wrong kind or out of range, or one that contradicts the input; names the key.
    """
    declared = _Declared(table, spec)
    for key in table:
        if key not in _KEYS:
            raise declared.refused(key, f"is unknown, wanted one of {', '.join(_KEYS)}")
    if spec.datatype not in DATATYPES or len(spec.shape) != 4:
        raise declared.refused("", f"wants an input of 4 dimensions and FP32, FP16 or UINT8, got {spec.datatype} {list(spec.shape)}")
    layout = declared.layout()
    color, channels = declared.color(layout)
    height, width = declared.size(layout)
    resize = declared.choice("resize", RESIZES, "")
    return ImagePreprocessing(
        resize=resize,
        height=height,
        width=width,
        crop_fraction=declared.crop_fraction(resize),
        shorter_side=declared.shorter_side(resize, max(height, width)),
        interpolation=declared.choice("interpolation", tuple(INTERPOLATIONS), "bilinear"),
        color=color,
        layout=layout,
        mean=declared.per_channel("mean", channels, 0.0),
        std=declared.per_channel("std", channels, 1.0),
        datatype=spec.datatype,
    )


class _Declared:
    """The table and its input, with a reader for each kind of key."""

    def __init__(self, table: Mapping[str, Any], spec: TensorSpec) -> None:
        self._table = table
        self._spec = spec

    def refused(self, key: str, problem: str) -> ModelLoadFailed:
        return ModelLoadFailed(one_line(f"[input.{self._spec.name}.image] {key}{' ' if key else ''}{problem}"))

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self._table.get(key, default)
        if value not in choices:
            raise self.refused(key, f"wants one of {', '.join(choices)}, got {_shown(value) if key in self._table else 'nothing'}")
        return str(value)

    def layout(self) -> str:
        if "layout" in self._table:
            return self.choice("layout", LAYOUTS, "")
        fits = [layout for layout, axis in (("NCHW", 1), ("NHWC", 3)) if self._spec.shape[axis] in COLORS.values()]
        if len(fits) != 1:
            raise self.refused("layout", f"wants NCHW or NHWC: the input's shape {list(self._spec.shape)} does not tell")
        return fits[0]

    def color(self, layout: str) -> tuple[str, int]:
        channels = self._spec.shape[1 if layout == "NCHW" else 3]
        color = self.choice("color", tuple(COLORS), "grayscale" if channels == 1 else "RGB")
        if channels not in (-1, COLORS[color]):
            raise self.refused("color", f"wants a colour of {channels} channels ({layout} input), got {color} of {COLORS[color]}")
        return color, COLORS[color]

    def size(self, layout: str) -> tuple[int, int]:
        """Height and width: the input's, or the table's where the input's are variable."""
        of_input = self._spec.shape[2:4] if layout == "NCHW" else self._spec.shape[1:3]
        size = self._table.get("size", list(of_input))
        if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int and 1 <= side <= 16384 for side in size):
            raise self.refused("size", f"wants [height, width], 1 to 16384 each, got {_shown(size)}")
        if any(fixed not in (-1, side) for fixed, side in zip(of_input, size, strict=True)):
            raise self.refused("size", f"wants the input's {list(of_input)}, got {size}")
        return size[0], size[1]

    def crop_fraction(self, resize: str) -> float:
        self._only_for("crop_fraction", resize, "crop_then_resize")
        value = self._table.get("crop_fraction", 1.0)
        if type(value) not in (int, float) or not 0 < value <= 1:
            raise self.refused("crop_fraction", f"wants a number above 0 and at most 1, got {_shown(value)}")
        return float(value)

    def shorter_side(self, resize: str, at_least: int) -> int:
        self._only_for("shorter_side", resize, "shorter_side")
        if resize != "shorter_side":
            return 0
        value = self._table.get("shorter_side")
        if type(value) is not int or not at_least <= value <= 16384:
            raise self.refused("shorter_side", f"wants pixels, {at_least} to 16384, got {_shown(value)}")
        return value

    def per_channel(self, key: str, channels: int, default: float) -> tuple[float, ...]:
        if key in self._table and self._spec.datatype is Datatype.UINT8:
            raise self.refused(key, "is for floating-point inputs, got a UINT8 input, which takes the pixels as they are")
        value = self._table.get(key, default)
        values = value if isinstance(value, list) else [value] * channels
        if len(values) != channels or not all(type(item) in (int, float) and np.isfinite(item) for item in values):
            raise self.refused(key, f"wants a number or {channels} of them, got {_shown(value)}")
        if key == "std" and not all(abs(item) >= 1e-6 for item in values):
            raise self.refused(key, f"wants numbers other than 0, got {_shown(value)}")
        return tuple(float(item) for item in values)

    def _only_for(self, key: str, resize: str, wanted: str) -> None:
        if key in self._table and resize != wanted:
            raise self.refused(key, f"is for resize {wanted}, got resize {resize}")


def _shown(value: object) -> str:
    """A value from the table, as an operator wrote it, capped."""
    return one_line(repr(value), 100)
