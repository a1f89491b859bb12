"""An encoded image as bytes, decoded to 8-bit pixels; the boundary to Pillow, on which nothing a stranger sends may do harm.

JPEG, PNG, WebP, BMP, GIF and TIFF, told apart by their first bytes; of several frames or pages the first. The order, which a client that
decodes for itself has to follow:

1. decode (16-bit channels keep their high byte; embedded colour profiles are ignored);
2. turn by the EXIF orientation;
3. convert the colours, pixel by pixel: palettes are looked up; CMYK becomes RGB by ``(255 - C) * (255 - K) / 255`` and so on;
   transparent pixels are laid on white, ``round((c * a + 255 * (255 - a)) / 255)``; grey from colour is
   ``(19595 R + 38470 G + 7471 B + 32768) >> 16``.

JPEG is decoded at its full size: decoding at a fraction (``draft``) is quicker for large photographs and gives other numbers.
"""

from __future__ import annotations

import io
import logging
import re
import struct
import warnings
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from core_grpc.errors import InvalidArgument

# Pillow warns and logs about odd metadata. Strangers' images are full of it, it does not concern the pixels, and nobody here can mend it.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)

_Open: TypeAlias = Callable[[io.BytesIO], ImageFile]

# The plugins are called by name instead of through Image.open: one signature leads to one decoder, and Pillow's process-wide pixel limit
# stays as it is for other code, while ours is checked from the header.
_FORMATS: tuple[tuple[str, re.Pattern[bytes], _Open], ...] = (
    ("JPEG", re.compile(rb"\xff\xd8\xff"), JpegImageFile),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n"), PngImageFile),
    ("WebP", re.compile(rb"RIFF[\s\S]{4}WEBP"), WebPImageFile),
    ("GIF", re.compile(rb"GIF8[79]a"), GifImageFile),
    ("BMP", re.compile(rb"BM"), BmpImageFile),
    ("TIFF", re.compile(rb"II[*+]\x00|MM\x00[*+]"), TiffImageFile),
)
_WANTED = "an encoded image (JPEG, PNG, WebP, GIF, BMP or TIFF)"

_MAX_SIDE = 65_535
"""Pixels; JPEG's own limit. A filter's weights take memory by the side, not by the area, so a line of 50 million pixels is refused."""

_MAX_JPEG_SCANS = 64
"""A progressive photograph has about ten. Each, of a few bytes, goes over all pixels (0.06 s for 49 million), so thousands cost minutes."""

_JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""A marker inside entropy-coded data, where stuffed zeros and restart markers are data."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_TAG = 0x0112
_DEEP_GREY = ("I;16", "I;16B", "I;16L", "I;16N")
_COLOUR_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


def decode_image(data: bytes, max_pixels: int) -> Image.Image:
    """The first frame, upright; its mode is the file's.

    Raises:
        InvalidArgument: not an image of a known format, larger than ``max_pixels``, truncated or damaged.
    """
    name, opener = _format_of(data)
    if name == "JPEG" and _jpeg_scans(data) > _MAX_JPEG_SCANS:
        raise InvalidArgument(f"a JPEG image of at most {_MAX_JPEG_SCANS} scans was wanted, got more")
    # Pillow's decoders leave by all kinds of exceptions when a file is damaged, and their texts quote objects.
    try:
        image = opener(io.BytesIO(data))
    except Exception as error:
        raise _damaged(name) from error
    _check_size(image.size, max_pixels)
    try:
        image.load()
        return _upright(image)
    except Exception as error:
        raise _damaged(name) from error


def convert_colors(image: Image.Image, mode: str) -> Image.Image:
    """The image with 8 bits a channel, on white where it was transparent.

    Args:
        image: of any mode that ``decode_image`` gives.
        mode: ``RGB`` or ``L``.

    Raises:
        InvalidArgument: its pixels have no defined range (32-bit integers, floats) or colour space.
    """
    if image.mode in _DEEP_GREY:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode not in _COLOUR_MODES:
        raise InvalidArgument(f"an image with 8 or 16 bits a channel, grey, RGB or CMYK, was wanted, got pixels of kind {image.mode}")
    if image.has_transparency_data:
        image = _on_white(image)
    return image if image.mode == mode else image.convert(mode)


def _format_of(data: bytes) -> tuple[str, _Open]:
    for name, signature, opener in _FORMATS:
        if signature.match(data):
            return name, opener
    raise InvalidArgument(f"{_WANTED} was wanted, got " + (f"{len(data)} bytes that are none of these" if data else "0 bytes"))


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise InvalidArgument(f"an image of at most {max_pixels} pixels (max_image_pixels) was wanted, got {width} x {height}")
    if max(size) > _MAX_SIDE:
        raise InvalidArgument(f"an image of at most {_MAX_SIDE} pixels a side was wanted, got {width} x {height}")


def _damaged(name: str) -> InvalidArgument:
    return InvalidArgument(f"a whole {name} image was wanted, got one that is truncated or damaged")


def _upright(image: ImageFile) -> Image.Image:
    # Pillow turns TIFF while loading. The EXIF of a PNG may follow its pixels, so this comes after load().
    exif = image.info.get("exif", b"")
    if isinstance(image, TiffImageFile) or not isinstance(exif, bytes):
        return image
    turn = _TURNS.get(exif_orientation(exif))
    return image if turn is None else image.transpose(turn)


def exif_orientation(exif: bytes) -> int:
    """The orientation tag (1 to 8) of an EXIF block; 1 where it is absent or unreadable."""
    tiff = exif.removeprefix(b"Exif\x00\x00")
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, directory)
        for index in range(count):
            tag, kind, values, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * index)
            if tag == _ORIENTATION_TAG:
                return value if kind == 3 and values == 1 and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


def _on_white(image: Image.Image) -> Image.Image:
    clear = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(clear.convert("RGB"), mask=clear.getchannel("A"))
    return white


def _jpeg_scans(data: bytes) -> int:
    """Scans of the first image in the file; what follows it (previews, films) does not count."""
    position, scans = 2, 0
    while position + 4 <= len(data) and data[position] == 0xFF and data[position + 1] != 0xD9:
        marker = data[position + 1]
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if marker == 0xDA:
            scans += 1
            after = _JPEG_MARKER.search(data, position)
            position = after.start() if after else len(data)
    return scans
