"""Writes tests/vectors/preprocessing.json: small images, recipes, and the numbers that a client that preprocesses itself has to reach.

    python -m tests.support.preprocessing_vectors

The numbers are the server's. ``reference`` computes them a second time from docs/image-preprocessing.md alone, in plain numpy and from
pixels that are known because they are drawn here; the unit test holds the two together.
"""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from core_grpc.processing.images import image_preprocessing_from_table, preprocess_image
from core_grpc.types import Array, Datatype, TensorSpec

PATH = Path(__file__).parents[1] / "vectors" / "preprocessing.json"
LITE0 = {"resize": "crop_then_resize", "crop_fraction": 0.875, "interpolation": "bicubic", "mean": 127, "std": 128}
TORCHVISION = {
    "resize": "shorter_side",
    "shorter_side": 7,
    "interpolation": "bilinear",
    "mean": [123.675, 116.28, 103.53],
    "std": [58.395, 57.12, 57.375],
}
EXACT = {"resize": "exact", "interpolation": "bilinear"}


@dataclass(frozen=True)
class Case:
    """An encoded image, the pixels in it (upright, RGB or grey, on white), and a recipe."""

    name: str
    encoded: bytes
    pixels: Array
    table: dict[str, Any]
    shape: tuple[int, ...]
    datatype: str = "FP32"
    tolerance_levels: int = 1
    """How far, in steps of a pixel's 255, another decoder and resampler may be off."""


def drawn(height: int, width: int) -> Array:
    """RGB pixels with gradients and edges, so that a swapped axis or channel shows."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * x // max(width - 1, 1), 255 * y // max(height - 1, 1)
    return np.stack([red, green, np.where((x + y) % 3 == 0, 230, 20)], axis=-1).astype(np.uint8)


def encoded(pixels: Array, image_format: str, mode: str | None = None, **options: Any) -> bytes:
    """The pixels as a file."""
    image = Image.fromarray(pixels)
    sink = io.BytesIO()
    (image.convert(mode) if mode else image).save(sink, image_format, **options)
    return sink.getvalue()


def cases() -> list[Case]:
    """All vectors."""
    rgb, wide = drawn(12, 16), drawn(8, 24)
    one = (-1, 3, 4, 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    grey16 = (np.arange(8 * 8, dtype=np.uint16) * 1021).reshape(8, 8)
    return [
        Case("bicubic centre crop", encoded(rgb, "PNG"), rgb, LITE0, one),
        Case("wide image, shorter side", encoded(wide, "PNG"), wide, TORCHVISION, (-1, 3, 6, 6)),
        Case("stretched, upwards, NHWC", encoded(rgb, "PNG"), rgb, EXACT, (-1, 20, 24, 3)),
        Case("same size, untouched UINT8, BGR", encoded(rgb, "PNG"), rgb, {"resize": "exact", "color": "BGR"}, (-1, 12, 16, 3), "UINT8", 0),
        Case(
            "nearest", encoded(rgb, "WEBP", lossless=True), rgb, {"resize": "exact", "interpolation": "nearest"}, (-1, 3, 6, 8), "UINT8", 0
        ),
        Case("PNG turned by EXIF", encoded(rgb, "PNG", exif=exif), np.rot90(rgb, -1), EXACT, (-1, 3, 8, 6)),
        Case("JPEG turned by EXIF", encoded(rgb, "JPEG", quality=100, subsampling=0, exif=exif), np.rot90(rgb, -1), EXACT, one, "FP32", 4),
        Case("transparent on white", encoded(_with_alpha(rgb), "PNG"), _on_white(_with_alpha(rgb)), EXACT, one),
        Case("palette", encoded(_four_colors(rgb), "GIF", "P"), _four_colors(rgb), EXACT, one),
        Case("grey file for a colour input", encoded(rgb[:, :, 0], "PNG"), np.repeat(rgb[:, :, :1], 3, axis=2), EXACT, one),
        Case("colour file for a grey input", encoded(rgb, "BMP"), _grey(rgb), EXACT, (-1, 1, 6, 6)),
        Case("16-bit grey", encoded(grey16, "PNG"), (grey16 >> 8).astype(np.uint8)[:, :, None], EXACT, (-1, 1, 4, 4)),
        Case("FP16", encoded(rgb, "TIFF"), rgb, LITE0, one, "FP16"),
    ]


def served(case: Case) -> Array:
    """What the server makes of it."""
    spec = TensorSpec("input", Datatype(case.datatype), case.shape)
    return preprocess_image(case.encoded, image_preprocessing_from_table(case.table, spec), 1_000_000)


def reference(case: Case) -> Array:
    """What docs/image-preprocessing.md says, from the drawn pixels; before rounding to the input's datatype."""
    table = case.table
    channels_first = case.shape[1] in (1, 3)
    height, width = case.shape[2:4] if channels_first else case.shape[1:3]
    pixels = case.pixels.astype(np.float64)
    rows, columns = _sampled_ranges(pixels.shape[0], pixels.shape[1], height, width, table)
    if table["resize"] == "crop_then_resize":
        (top, bottom), (left, right) = rows, columns
        pixels = pixels[int(top) : int(bottom), int(left) : int(right)]
        rows, columns = (0, bottom - top), (0, right - left)
    kind = table.get("interpolation", "bilinear")
    pixels = np.einsum("xs,ysc->yxc", _weights(pixels.shape[1], columns, width, kind), pixels)
    pixels = np.einsum("ys,sxc->yxc", _weights(pixels.shape[0], rows, height, kind), pixels)
    pixels = np.clip(pixels, 0, 255)
    if table.get("color") == "BGR":
        pixels = pixels[:, :, ::-1]
    pixels = (pixels - np.array(table.get("mean", 0.0))) / np.array(table.get("std", 1.0))
    result: Array = pixels.transpose(2, 0, 1) if channels_first else pixels
    return result


def _sampled_ranges(source_height: int, source_width: int, height: int, width: int, table: dict[str, Any]) -> tuple[Any, Any]:
    """The rows and columns of the source, as (start, end), that the result covers."""
    if table["resize"] == "exact":
        return (0, source_height), (0, source_width)
    shorter = min(source_height, source_width)
    if table["resize"] == "crop_then_resize":  # square inputs only
        side = math.floor(table["crop_fraction"] * shorter)
        top, left = (source_height - side) // 2, (source_width - side) // 2
        return (top, top + side), (left, left + side)
    ranges = []
    for source, target in ((source_height, height), (source_width, width)):
        scaled = math.floor(table["shorter_side"] * source / shorter)
        start = round((scaled - target) / 2)
        ranges.append((start * source / scaled, (start + target) * source / scaled))
    return ranges[0], ranges[1]


def _weights(source: int, covered: tuple[float, float], target: int, kind: str) -> Array:
    """[target, source]: how much of each source pixel goes into each pixel of the result."""
    scale = (covered[1] - covered[0]) / target
    stretch = max(scale, 1.0)
    weights = np.zeros((target, source))
    for index in range(target):
        centre = covered[0] + (index + 0.5) * scale
        if kind == "nearest":
            weights[index, min(int(centre), source - 1)] = 1
            continue
        weights[index] = [_filter((pixel + 0.5 - centre) / stretch, kind) for pixel in range(source)]
    normalised: Array = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _filter(x: float, kind: str) -> float:
    x = abs(x)
    if kind == "bilinear":
        return max(0.0, 1 - x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def _with_alpha(rgb: Array) -> Array:
    alpha = (np.arange(rgb.shape[0] * rgb.shape[1]) % 256).astype(np.uint8).reshape((*rgb.shape[:2], 1))
    return np.concatenate([rgb, alpha], axis=2)


def _on_white(rgba: Array) -> Array:
    color, alpha = rgba[:, :, :3].astype(np.int64), rgba[:, :, 3:].astype(np.int64)
    return np.floor((color * alpha + 255 * (255 - alpha)) / 255 + 0.5).astype(np.uint8)


def _four_colors(rgb: Array) -> Array:
    return np.where(rgb > 127, 255, 0).astype(np.uint8)


def _grey(rgb: Array) -> Array:
    red, green, blue = (rgb[:, :, channel].astype(np.int64) for channel in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)[:, :, None]


def document() -> dict[str, Any]:
    """The file's contents."""
    return {
        "about": "Image preprocessing: docs/image-preprocessing.md says what happens. `expected` is one row of the input, flat, in C order."
        " `tolerance` is how far off a number may be: other decoders and resamplers round differently.",
        "cases": [_entry(case) for case in cases()],
    }


def _entry(case: Case) -> dict[str, Any]:
    row = served(case)
    std = case.table.get("std", 1.0)
    return {
        "name": case.name,
        "image_base64": base64.b64encode(case.encoded).decode("ascii"),
        "datatype": case.datatype,
        "shape": list(case.shape),
        "image": case.table,
        "expected_shape": list(row.shape),
        "tolerance": round(case.tolerance_levels / float(np.min(std)) + (0.001 if case.datatype == "FP16" else 0), 6),
        "expected": [round(float(value), 6) for value in row.ravel()],
    }


if __name__ == "__main__":
    entries = document()
    lines = ",\n  ".join(json.dumps(entry) for entry in entries.pop("cases"))
    PATH.write_text(f'{{\n"about": {json.dumps(entries["about"])},\n"cases": [\n  {lines}\n]\n}}\n', encoding="utf-8")
