"""Whatever bytes arrive as an image: a row of the right shape, or one line of InvalidArgument. Nothing else leaves."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from core_grpc.errors import InvalidArgument
from core_grpc.processing.images import image_preprocessing_from_table, preprocess_image
from core_grpc.types import Array, Datatype, TensorSpec

RECIPE = image_preprocessing_from_table({"resize": "shorter_side", "shorter_side": 20}, TensorSpec("x", Datatype.FP32, (-1, 3, 16, 16)))
MAX_PIXELS = 200_000


def _encoded(image_format: str, mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.random.default_rng(3).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(sink, image_format, **options)
    return sink.getvalue()


WHOLE = [
    _encoded("JPEG"),
    _encoded("JPEG", "CMYK", progressive=True),
    _encoded("PNG", "RGBA"),
    _encoded("PNG", "P", transparency=b"\x00\x80"),
    _encoded("WEBP"),
    _encoded("WEBP", "RGBA", lossless=True),
    _encoded("GIF", "P", save_all=True, append_images=[Image.new("P", (30, 24), 3)]),
    _encoded("BMP"),
    _encoded("TIFF"),
    _encoded("TIFF", compression="tiff_lzw"),
]

Damage = st.lists(
    st.tuples(st.sampled_from(["set", "cut", "insert", "remove"]), st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=6)),
    min_size=1,
    max_size=5,
)


def _damaged(whole: bytes, damage: list[tuple[str, float, bytes]]) -> bytes:
    data = bytearray(whole)
    for kind, where, replacement in damage:
        # Squared: headers, at the start, decide more than pixels do.
        at = int(where * where * len(data))
        if kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + len(replacement)]
        else:
            data[at : at + (len(replacement) if kind == "set" else 0)] = replacement
    return bytes(data)


@pytest.mark.filterwarnings(r"ignore:::PIL\.")
@settings(max_examples=400, deadline=None)
@given(whole=st.sampled_from(WHOLE), damage=Damage)
def test_damaged_images_end_as_a_row_or_as_one_line(whole: bytes, damage: list[tuple[str, float, bytes]]) -> None:
    outcome = _outcome(_damaged(whole, damage))
    if isinstance(outcome, str):
        assert "wanted, got " in outcome
        assert " at 0x" not in outcome
    else:
        assert outcome.shape == (3, 16, 16)
        assert np.isfinite(outcome).all()


def _outcome(data: bytes) -> Array | str:
    try:
        return preprocess_image(data, RECIPE, MAX_PIXELS)
    except InvalidArgument as refusal:
        return refusal.message
