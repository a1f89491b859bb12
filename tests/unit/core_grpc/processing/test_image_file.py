"""Decoding what strangers send: every format, every colour mode, and files made to do harm."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core_grpc.errors import InvalidArgument
from core_grpc.processing.image_file import convert_colors, decode_image, exif_orientation

# In the server Pillow's warnings about odd metadata are ignored; pytest puts its own filters in front of that.
pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")

LIMIT = 1_000_000
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, image_format, **options)
    return sink.getvalue()


def noise(width: int = 40, height: int = 30) -> Image.Image:
    pixels = np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def with_palette(index: int) -> Image.Image:
    """A palette image, all of one entry, none of which is white."""
    image = Image.new("P", (4, 4), index)
    image.putpalette(range(24))
    return image


def refusal(data: bytes, max_pixels: int = LIMIT) -> str:
    with pytest.raises(InvalidArgument) as caught:
        convert_colors(decode_image(data, max_pixels), "RGB")
    message = caught.value.message
    assert "\n" not in message
    assert " at 0x" not in message
    assert "<" not in message
    return message


@pytest.mark.parametrize("image_format", FORMATS)
def test_every_format_is_decoded(image_format: str) -> None:
    source = Image.new("RGB", (9, 5), (250, 120, 10))
    pixels = np.asarray(convert_colors(decode_image(encode(source, image_format), LIMIT), "RGB"))
    assert pixels.shape == (5, 9, 3)
    np.testing.assert_allclose(pixels, np.asarray(source), atol=4)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg"])
def test_tiff_compressions(compression: str) -> None:
    decoded = decode_image(encode(Image.new("RGB", (9, 5), (9, 99, 199)), "TIFF", compression=compression), LIMIT)
    np.testing.assert_allclose(np.asarray(decoded)[2, 3], (9, 99, 199), atol=4)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(orientation: int, image_format: str) -> None:
    """Corners are told apart by colour: where the top left corner of the stored picture goes is the definition of each value."""
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = (255, 0, 0)
    upright[:8, 16:] = (0, 255, 0)
    upright[8:, :16] = (0, 0, 255)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100} | ({"subsampling": 0} if image_format == "JPEG" else {"lossless": True} if image_format == "WEBP" else {})
    options = {} if image_format in ("PNG", "TIFF") else options
    decoded = decode_image(encode(Image.fromarray(np.ascontiguousarray(stored)), image_format, exif=exif, **options), LIMIT)
    np.testing.assert_allclose(np.asarray(decoded.convert("RGB"), dtype=int), upright, atol=3)


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_orientation_tag_is_read_in_either_byte_order(order: str) -> None:
    mark = b"II*\x00" if order == "<" else b"MM\x00*"
    entries = struct.pack(order + "HHIHH", 0x010F, 3, 1, 5, 0) + struct.pack(order + "HHIHH", 0x0112, 3, 1, 8, 0)
    block = mark + struct.pack(order + "IH", 8, 2) + entries
    assert exif_orientation(block) == 8
    assert exif_orientation(b"Exif\x00\x00" + block) == 8


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"Exif\x00\x00",
        b"II*\x00",
        b"II*\x00\xff\xff\xff\xff",
        b"II*\x00\x08\x00\x00\x00\xff\xff" + bytes(60),
        b"II*\x00\x08\x00\x00\x00\x01\x00" + struct.pack("<HHIHH", 0x0112, 3, 1, 99, 0),
        b"II*\x00\x08\x00\x00\x00\x01\x00" + struct.pack("<HHIHH", 0x0112, 4, 7, 6, 0),
        b"nonsense" * 10_000,
    ],
)
def test_an_unreadable_exif_block_turns_nothing(exif: bytes) -> None:
    assert exif_orientation(exif) == 1


def test_huge_and_broken_exif_does_no_harm() -> None:
    block = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + bytes(range(256)) * 250
    decoded = decode_image(encode(Image.new("RGB", (8, 8)), "JPEG", exif=block), LIMIT)
    assert decoded.size == (8, 8)
    decoded = decode_image(encode(Image.new("RGB", (8, 8)), "PNG", exif=block * 50), LIMIT)
    assert decoded.size == (8, 8)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
def test_color_modes_end_as_rgb_and_grey(mode: str) -> None:
    source = Image.new("RGB", (6, 6), "white").convert(mode)
    decoded = decode_image(encode(source, "TIFF"), LIMIT)
    assert decoded.mode == mode
    for wanted in ("RGB", "L"):
        converted = convert_colors(decoded, wanted)
        assert converted.mode == wanted
        assert np.asarray(converted).min() == 255


def test_inverted_cmyk_of_a_jpeg() -> None:
    decoded = convert_colors(decode_image(encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100), LIMIT), "RGB")
    np.testing.assert_allclose(np.asarray(decoded)[8, 8], (255, 0, 0), atol=3)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (Image.new("RGBA", (4, 4), (0, 0, 0, 0)), {}),
        (Image.new("LA", (4, 4), (0, 0)), {}),
        (Image.new("RGB", (4, 4), (1, 2, 3)), {"transparency": (1, 2, 3)}),
        (with_palette(5), {"transparency": 5}),
        (with_palette(1), {"transparency": b"\xff\x00\xff"}),
        (Image.new("L", (4, 4), 9), {"transparency": 9}),
    ],
)
def test_what_is_transparent_becomes_white(source: Image.Image, options: dict[str, Any]) -> None:
    pixels = np.asarray(convert_colors(decode_image(encode(source, "PNG", **options), LIMIT), "RGB"))
    assert pixels.min() == 255


def test_half_transparent_pixels_are_mixed_with_white() -> None:
    color, alpha = np.meshgrid(np.arange(256), np.arange(256))
    rgba = np.stack([color, color, color, alpha], axis=-1).astype(np.uint8)
    mixed = np.asarray(convert_colors(decode_image(encode(Image.fromarray(rgba), "PNG"), LIMIT), "RGB"))[:, :, 0]
    np.testing.assert_array_equal(mixed, np.floor((color * alpha + 255 * (255 - alpha)) / 255 + 0.5))


def test_grey_weights() -> None:
    source = noise(64, 64)
    red, green, blue = np.moveaxis(np.asarray(source, dtype=np.int64), -1, 0)
    grey = np.asarray(convert_colors(decode_image(encode(source, "PNG"), LIMIT), "L"))
    np.testing.assert_array_equal(grey, (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16)


@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
def test_sixteen_bits_keep_the_high_byte(image_format: str) -> None:
    deep = (np.arange(4096, dtype=np.uint16) * 16 + 7).reshape(64, 64)
    shown = np.asarray(convert_colors(decode_image(encode(Image.fromarray(deep), image_format), LIMIT), "L"))
    np.testing.assert_array_equal(shown, deep >> 8)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_range_are_refused(dtype: Any) -> None:
    message = refusal(encode(Image.fromarray(np.ones((4, 4), dtype)), "TIFF"))
    assert message.startswith("an image with 8 or 16 bits a channel")


@pytest.mark.parametrize("image_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_counts(image_format: str) -> None:
    frames = [Image.new("RGB", (6, 6), color) for color in ("red", "lime", "blue")]
    options = {"lossless": True} if image_format == "WEBP" else {}
    data = encode(frames[0], image_format, save_all=True, append_images=frames[1:], **options)
    pixels = np.asarray(convert_colors(decode_image(data, LIMIT), "RGB"))
    np.testing.assert_array_equal(pixels[3, 3], (255, 0, 0))


def test_nothing_and_other_things_are_not_images() -> None:
    wanted = "an encoded image (JPEG, PNG, WebP, GIF, BMP or TIFF) was wanted, got "
    assert refusal(b"") == wanted + "0 bytes"
    assert refusal(b"<html>") == wanted + "6 bytes that are none of these"
    for other in (b"%PDF-1.7", b"%!PS-Adobe-3.0 EPSF", b"\x00\x00\x01\x00ico", b"P6 1 1 255 abc", b"<svg/>", bytes(100)):
        assert refusal(other).startswith(wanted)


@pytest.mark.parametrize("image_format", FORMATS)
def test_no_prefix_of_an_image_is_taken_for_a_whole_one(image_format: str) -> None:
    data = encode(noise(), image_format)
    # The last bytes of some formats carry no pixels, so a file without them is whole.
    for end in {*range(1, 60), *range(60, len(data) - 100, 97)}:
        message = refusal(data[:end])
        assert "was wanted, got" in message


def test_a_damaged_image_is_named_by_its_format() -> None:
    data = bytearray(encode(noise(), "PNG"))
    data[60:80] = bytes(20)
    assert refusal(bytes(data)) == "a whole PNG image was wanted, got one that is truncated or damaged"


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that no pixel backs."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_the_size_is_checked_before_anything_is_decoded() -> None:
    started = time.monotonic()
    assert refusal(png_of_size(30_000, 30_000), 50_000_000) == (
        "an image of at most 50000000 pixels (max_image_pixels) was wanted, got 30000 x 30000"
    )
    assert refusal(encode(noise(40, 30), "JPEG"), 40 * 30 - 1).endswith("at most 1199 pixels (max_image_pixels) was wanted, got 40 x 30")
    assert refusal(png_of_size(2**31 - 1, 2**31 - 1)).endswith("got 2147483647 x 2147483647")
    assert time.monotonic() - started < 2
    assert decode_image(encode(noise(40, 30), "JPEG"), 40 * 30).size == (40, 30)


def test_a_line_of_many_pixels_is_refused() -> None:
    assert refusal(png_of_size(40_000_000, 1), 50_000_000) == "an image of at most 65535 pixels a side was wanted, got 40000000 x 1"


def test_an_image_without_pixels_is_refused() -> None:
    assert refusal(png_of_size(0, 5)) == "a whole PNG image was wanted, got one that is truncated or damaged"


def test_a_jpeg_of_thousands_of_scans_is_refused() -> None:
    data = encode(noise(64, 64), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    assert decode_image(data[:-2] + last * 40 + data[-2:], LIMIT).size == (64, 64)
    assert refusal(data[:-2] + last * 5000 + data[-2:]) == "a JPEG image of at most 64 scans was wanted, got more"


def test_what_follows_a_jpeg_does_not_count() -> None:
    data = encode(noise(64, 64), "JPEG", progressive=True)
    assert decode_image(data + b"\xff\xda\x00\x02" * 5000, LIMIT).size == (64, 64)


def test_metadata_that_pillow_warns_about_leaves_no_trace_on_stderr() -> None:
    """In a process of its own, where pytest's filters are not in front: every warning would be an error."""
    program = (
        "import io, sys\n"
        "from PIL import Image\n"
        "from core_grpc.processing.image_file import decode_image, convert_colors\n"
        "exif = b'Exif\\0\\0II*\\0\\x08\\0\\0\\0\\x05\\0' + bytes(range(200))\n"
        "sink = io.BytesIO(); Image.new('RGB', (8, 8)).save(sink, 'JPEG', exif=exif)\n"
        "decode_image(sink.getvalue(), 100)\n"
        "sink = io.BytesIO(); Image.new('P', (8, 8)).save(sink, 'PNG', transparency=b'\\0\\1')\n"
        "convert_colors(decode_image(sink.getvalue(), 100), 'RGB')\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
