"""The lines of text on a page, cut out: connected parts of the detector's map, each in the smallest rectangle around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import ConvexHull, QhullError

from core_grpc.python_model import Request

THRESHOLD, LEAST_SCORE, GROWTH = 0.3, 0.5, 1.6
"""Of a pixel to be text; of a part's mean; of a rectangle, whose sides move outwards by area x GROWTH / perimeter."""
LEAST_SIDE, MOST_LINES = 3, 1000
HEIGHT, LEAST_WIDTH, MOST_WIDTH = 48, 16, 1280
PIECE_WIDTH, MOST_PIECES = 192, 4
TALL = 1.5
"""A rectangle that is so much higher than wide holds a line that runs downwards."""
Array = NDArray[np.float64]


class Model:
    """See the module's text."""

    def execute(self, requests: Sequence[Request]) -> list[Mapping[str, NDArray[np.generic]]]:
        """One entry for each request."""
        return [lines_of(request.inputs["MAP"][0, 0], request.inputs["PAGE"]) for request in requests]


def lines_of(scores: NDArray[np.float32], page: NDArray[np.uint8]) -> Mapping[str, NDArray[np.generic]]:
    """The outputs for one page."""
    scale = np.array([page.shape[1] / scores.shape[1], page.shape[0] / scores.shape[0]])
    boxes = in_reading_order([box * scale for box in rectangles(scores)])
    widths = [line_width(box) for box in boxes]
    lines = np.zeros((len(boxes), HEIGHT, max(widths, default=0), 3), np.uint8)
    pieces: list[NDArray[np.float32]] = []
    line_of_piece: list[int] = []
    for row, (box, width) in enumerate(zip(boxes, widths, strict=True)):
        lines[row, :, :width] = cut_out(page, box, width)
        of_line = pieces_of(lines[row, :, :width])
        pieces += of_line
        line_of_piece += [row] * len(of_line)
    return {
        "BOX": np.array(boxes, np.float32).reshape(-1, 4, 2),
        "LINE": lines,
        "WIDTH": np.array(widths, np.int32),
        "PIECE": np.array(pieces, np.float32).reshape(-1, 3, HEIGHT, PIECE_WIDTH),
        "LINE_OF_PIECE": np.array(line_of_piece, np.int32),
    }


def rectangles(scores: NDArray[np.float32]) -> Iterator[Array]:
    """Corners [4, 2] of the grown rectangles around the parts of the map that are text."""
    parts, count = ndimage.label(ndimage.binary_dilation(scores > THRESHOLD, np.ones((2, 2))), np.ones((3, 3)))
    for index, place in enumerate(ndimage.find_objects(parts)[: min(count, MOST_LINES)], 1):
        inside = parts[place] == index
        rows, columns = np.nonzero(inside)
        if scores[place][inside].mean() < LEAST_SCORE:
            continue
        box = smallest_rectangle(np.stack([columns + place[1].start, rows + place[0].start], axis=1).astype(np.float64))
        if box is not None and min(sides(box)) >= LEAST_SIDE:
            yield grown(box)


def smallest_rectangle(points: Array) -> Array | None:
    """The rectangle of the smallest area around the points; None for points on a line."""
    try:
        hull = points[ConvexHull(points).vertices]
    except QhullError:
        return None
    edges = np.diff(hull, axis=0, append=hull[:1])
    angles = np.unique(np.arctan2(edges[:, 1], edges[:, 0]) % (np.pi / 2))
    best: tuple[float, Array] | None = None
    for angle in angles:
        axes = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        along = hull @ axes.T
        low, high = along.min(axis=0), along.max(axis=0)
        area = float(np.prod(high - low))
        if best is None or area < best[0]:
            best = area, np.array([low, [high[0], low[1]], high, [low[0], high[1]]]) @ axes
    assert best is not None
    return standing(best[1])


def standing(corners: Array) -> Array:
    """The corners, clockwise from the left top one of a line that runs to the right, or downwards where the rectangle is tall."""
    first = min(range(4), key=lambda at: corners[at] @ np.array([1.0, 1.0]))
    box = np.roll(corners, -first, axis=0)
    if abs(box[1, 0] - box[0, 0]) < abs(box[1, 1] - box[0, 1]):
        box = np.roll(box, 1, axis=0)
    if box[1, 0] < box[0, 0]:
        box = np.roll(box, 2, axis=0)
    width, height = sides(box)
    return np.roll(box, -1, axis=0) if height >= TALL * width else box


def sides(box: Array) -> tuple[float, float]:
    """Width and height."""
    return float(np.linalg.norm(box[1] - box[0])), float(np.linalg.norm(box[3] - box[0]))


def grown(box: Array) -> Array:
    """The detector is taught to mark less than the text's height; this gives the rest back."""
    width, height = sides(box)
    distance = GROWTH * width * height / (2 * (width + height))
    right, down = (box[1] - box[0]) / width * distance, (box[3] - box[0]) / height * distance
    return box + np.array([-right - down, right - down, right + down, -right + down])


def in_reading_order(boxes: Sequence[Array]) -> list[Array]:
    """From the top to the end of the page, as the lines themselves run, and along the line where several boxes are in one."""
    if not boxes:
        return []
    along = np.sum([box[1] - box[0] for box in boxes], axis=0)
    along /= np.linalg.norm(along)
    places = [box.mean(axis=0) @ np.array([along, [-along[1], along[0]]]).T for box in boxes]
    ordered: list[int] = []
    for new in sorted(range(len(boxes)), key=lambda at: places[at][1]):
        at = len(ordered)
        while at and is_before(places[new], places[ordered[at - 1]], sides(boxes[new])[1]):
            at -= 1
        ordered.insert(at, new)
    return [boxes[at] for at in ordered]


def is_before(place: Array, other: Array, height: float) -> bool:
    """Whether two places (along the lines, across them) are in one line, and the first one is read first."""
    return bool(abs(place[1] - other[1]) < height / 2 and place[0] < other[0])


def pieces_of(line: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
    """Pieces that the classifier can judge. Of a whole line, squeezed into its width, it cannot tell top from bottom."""
    width = line.shape[1]
    count = min(MOST_PIECES, -(-width // PIECE_WIDTH))
    pieces: list[NDArray[np.float32]] = []
    for start in np.linspace(0, max(width - PIECE_WIDTH, 0), count).astype(int):
        part = line[:, start : start + PIECE_WIDTH]
        piece = np.zeros((3, HEIGHT, PIECE_WIDTH), np.float32)
        piece[:, :, : part.shape[1]] = (part.transpose(2, 0, 1) / 255 - 0.5) / 0.5
        pieces.append(piece)
    return pieces


def line_width(box: Array) -> int:
    """Pixels of a line that is HEIGHT high."""
    width, height = sides(box)
    return int(np.clip(round(HEIGHT * width / height), LEAST_WIDTH, MOST_WIDTH))


def cut_out(page: NDArray[np.uint8], box: Array, width: int) -> NDArray[np.float64]:
    """What is inside the box, [HEIGHT, width, 3], 0 to 255."""
    across = (np.arange(width) + 0.5) / width
    downward = (np.arange(HEIGHT) + 0.5) / HEIGHT
    places = box[0] + across[np.newaxis, :, np.newaxis] * (box[1] - box[0]) + downward[:, np.newaxis, np.newaxis] * (box[3] - box[0])
    coordinates = [places[..., 1] - 0.5, places[..., 0] - 0.5]
    channels = [ndimage.map_coordinates(page[..., channel], coordinates, np.float64, order=1, mode="nearest") for channel in range(3)]
    return np.stack(channels, axis=-1)
