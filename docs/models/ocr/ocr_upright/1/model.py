"""Lines that stand on their head are turned; all are normalised and padded to the narrowest of three widths that holds them.

Three widths instead of any: lines of one width can share a batch, whatever page they are from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from core_grpc.python_model import Request

BUCKETS = (320, 640, 1280)
Arrays = Mapping[str, NDArray[np.generic]]


class Model:
    """See the module's text."""

    def execute(self, requests: Sequence[Request]) -> list[Arrays]:
        """One entry for each request."""
        return [upright(**{name.lower(): array for name, array in request.inputs.items()}) for request in requests]


def upright(
    box: NDArray[np.float32],
    line: NDArray[np.uint8],
    width: NDArray[np.int32],
    line_of_piece: NDArray[np.int32],
    turned: NDArray[np.float32],
) -> Arrays:
    """The lines of one page in their buckets."""
    is_turned = turned_lines(len(line), line_of_piece, turned[:, 1])
    order = np.arange(len(line))
    if is_turned.sum() * 2 > len(line):
        order = order[::-1]
    boxes = np.where(is_turned[:, np.newaxis, np.newaxis], np.roll(box, 2, axis=1), box)[order]
    buckets = np.searchsorted(BUCKETS, width)[order]
    places = np.zeros((len(line), 2), np.int32)
    outputs: dict[str, NDArray[np.generic]] = {"BOX": boxes, "PLACE": places}
    for bucket, most in enumerate(BUCKETS):
        chosen = np.flatnonzero(buckets == bucket)
        places[chosen, 0], places[chosen, 1] = bucket, np.arange(len(chosen))
        # Zeros are the grey that the recogniser was taught to take for nothing.
        padded = np.zeros((len(chosen), 3, 48, most), np.float32)
        for row, at in enumerate(order[chosen]):
            pixels = line[at, :, : width[at]]
            pixels = pixels[::-1, ::-1] if is_turned[at] else pixels
            padded[row, :, :, : width[at]] = (pixels.transpose(2, 0, 1) / 255 - 0.5) / 0.5
        outputs[f"X{most}"] = padded
    return outputs


def turned_lines(lines: int, line_of_piece: NDArray[np.int32], scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which lines stand on their head: half by their own pieces, half by those of the whole page, whose lines mostly agree."""
    if not lines:
        return np.zeros(0, bool)
    of_line = np.bincount(line_of_piece, scores, lines) / np.bincount(line_of_piece, minlength=lines)
    result: NDArray[np.bool_] = of_line + scores.mean() > 1
    return result
