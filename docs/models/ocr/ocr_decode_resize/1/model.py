"""An encoded image to the page and to what the detector takes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from core_grpc.python_model import InferenceError, Request

SHORTEST, LONGEST = 736, 2016
"""Pixels: the shorter side is at least, the longer side at most as long for the detector."""
MOST_PIXELS = 50_000_000
STEP = 32


class Model:
    """See the module's text."""

    def execute(self, requests: Sequence[Request]) -> list[Mapping[str, NDArray[np.generic]] | InferenceError]:
        """One entry for each request."""
        return [self.one(request.inputs["IMAGE"][0]) for request in requests]

    def one(self, encoded: bytes) -> Mapping[str, NDArray[np.generic]] | InferenceError:
        """The tensors, or why there are none."""
        try:
            image = Image.open(io.BytesIO(encoded))
            if image.width * image.height > MOST_PIXELS:
                return InferenceError(f"IMAGE: wanted at most {MOST_PIXELS} pixels, got {image.width} x {image.height}")
            page = ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return InferenceError("IMAGE: wanted an encoded image, got something that cannot be decoded")
        scale = max(1.0, SHORTEST / min(page.size))
        scale *= min(1.0, LONGEST / (scale * max(page.size)))
        width, height = (max(STEP, round(side * scale / STEP) * STEP) for side in page.size)
        resized = _bgr(page.resize((width, height), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        normalised = (resized[np.newaxis].astype(np.float32) / 255 - 0.5) / 0.5
        return {"PAGE": _bgr(page), "RESIZED": np.ascontiguousarray(normalised, dtype=np.float32)}


def _bgr(image: Image.Image) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8)[:, :, ::-1])
