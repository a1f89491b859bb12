"""Pages as a camera sees them: drawn or taken from scikit-image, then tilted, lit unevenly, blurred by the lens, and compressed."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from skimage import data, transform

from core_grpc.types import Array

INVOICE = ("INVOICE No. 2024-00817", "Ship to: 14 Harbour Road", "12 x Brass hinge, 60 mm", "Total due: 1,284.50 EUR")
REMINDER = ("REMINDER No. 2025-11342", "Pay by: 28 February", "Amount open: 77.03 EUR")
PAGE = (
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
)
"""What ``skimage.data.page`` says, without its last line, which is out of focus."""


def drawn(lines: Sequence[str]) -> Array:
    """A white sheet with these lines, UINT8 [700, 1000, 3]."""
    sheet = Image.new("RGB", (1000, 700), "white")
    pen = ImageDraw.Draw(sheet)
    for row, line in enumerate(lines):
        pen.text((90, 90 + 130 * row), line, fill=(20, 20, 30), font=ImageFont.load_default(42 if row == 0 else 32))
    return np.asarray(sheet)


def printed_page() -> Array:
    """The page of a book that scikit-image ships, UINT8 [382, 768, 3]: twice its size, as a better camera would have it."""
    return np.asarray(Image.fromarray(data.page()).convert("RGB").resize((768, 382), Image.Resampling.BICUBIC))


def photographed(sheet: Array, turns: int = 0) -> bytes:
    """A JPEG of the sheet on a dark table, seen from one side; ``turns`` are quarter turns of the camera."""
    height, width = sheet.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], float)
    seen = corners + np.array([[60, 50], [20, 90], [60, 60], [40, 30]]) * width / 1000
    table = 1.12 * np.array([width, height])
    view = transform.ProjectiveTransform.from_estimate(seen, corners)
    photo = transform.warp(sheet, view, output_shape=tuple(int(size) for size in table[::-1]), cval=0.2)
    light = np.linspace(1.0, 0.75, photo.shape[1])[np.newaxis, :, np.newaxis]
    noise = np.random.default_rng(1).normal(0, 0.01, photo.shape)
    pixels = (np.clip(photo * light + noise, 0, 1) * 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.rot90(pixels, turns)).save(file, "JPEG", quality=85)
    return file.getvalue()
