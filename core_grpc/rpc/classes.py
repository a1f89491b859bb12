"""The best classes of an answer, for the doors that name them."""

from __future__ import annotations

from collections.abc import Mapping

from core_grpc.processing.labels import top_classes
from core_grpc.types import ModelSpec, Tensor

DEFAULT_TOP_K = 5


def row_classes(spec: ModelSpec, outputs: Mapping[str, Tensor], top_k: int) -> list[list[tuple[str, int, float]]]:
    """``(label, index, score)`` of the ``top_k`` best classes of each row, best first.

    Read from the first answered output that has labels; empty where there is none. ``top_k`` 0 means ``DEFAULT_TOP_K``, a
    negative one means none.
    """
    labelled = next((output for output in spec.outputs if output.labels and output.name in outputs), None)
    if labelled is None or top_k < 0:
        return []
    scores = outputs[labelled.name].array
    rows = scores.reshape(-1, scores.shape[-1])
    return [top_classes(row, labelled.labels, top_k or DEFAULT_TOP_K) for row in rows]
