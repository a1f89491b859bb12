"""Names of classes: the file that ``labels`` of ``[output.X]`` names, and the best classes of a row of scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from core_grpc.errors import ModelLoadFailed
from core_grpc.types import Array, TensorSpec


def labels_from_file(path: Path) -> tuple[str, ...]:
    """One label a line, UTF-8, the class's index being the line's, from 0.

    Raises:
        ModelLoadFailed: the file cannot be read, is not UTF-8, or a line is empty or not printable.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ModelLoadFailed(f"labels file '{path.name}' does not exist") from error
    except OSError as error:
        raise ModelLoadFailed(f"labels file '{path.name}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelLoadFailed(f"labels file '{path.name}' wants UTF-8, got a wrong byte at {error.start}") from error
    labels = tuple(line.strip() for line in text.removesuffix("\n").split("\n"))
    for number, label in enumerate(labels, 1):
        if not label or not label.isprintable():
            raise ModelLoadFailed(f"labels file '{path.name}' wants a printable label on each line, got none on line {number}")
    return labels


def check_labels(labels: Sequence[str], spec: TensorSpec) -> None:
    """Refuses labels that are not one for each class of the output's last dimension.

    Raises:
        ModelLoadFailed: the counts differ; names both. A variable last dimension takes any count.
    """
    classes = spec.shape[-1] if spec.shape else 0
    if classes not in (-1, len(labels)):
        raise ModelLoadFailed(f"[output.{spec.name}] labels wants {classes} of them, one for each class, got {len(labels)}")


def top_classes(scores_row: Array, labels: Sequence[str], k: int) -> list[tuple[str, int, float]]:
    """The ``k`` best of one row: label (empty where there is none), index, score; equal scores by index, NaN last."""
    scores = np.asarray(scores_row, dtype=np.float64).ravel()
    best = np.argsort(-scores, kind="stable")[: max(k, 0)]
    return [(labels[index] if index < len(labels) else "", int(index), float(scores[index])) for index in best]
