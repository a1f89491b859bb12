"""Triton's classification extension: instead of an output's values, the best classes of each row as texts.

Format: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from core_grpc.errors import InvalidArgument, quoted
from core_grpc.types import Array, Datatype, ModelSpec, ParameterValue, Tensor

PARAMETER = "classification"
"""An output's parameter: how many classes are wanted; 0 for none, which is values."""

_ORDERED = frozenset(
    {
        *(Datatype.INT8, Datatype.INT16, Datatype.INT32, Datatype.INT64),
        *(Datatype.UINT8, Datatype.UINT16, Datatype.UINT32, Datatype.UINT64),
        *(Datatype.FP32, Datatype.FP64),
    }
)


def class_count(name: str, parameters: Mapping[str, ParameterValue], spec: ModelSpec) -> int:
    """How many classes an output's parameters ask for; 0 for its values.

    Raises:
        InvalidArgument: not a count, or an output whose datatype has no classes.
    """
    if PARAMETER not in parameters:
        return 0
    wanted = parameters[PARAMETER]
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        got = quoted(wanted) if isinstance(wanted, str) else str(wanted).lower()
        raise InvalidArgument(f"output {quoted(name)} classification: wanted the number of classes, 0 for none, got {got}")
    datatype = next(item.datatype for item in spec.outputs if item.name == name)
    if wanted and datatype not in _ORDERED:
        raise InvalidArgument(f"class result not available for output {quoted(name)} due to unsupported type {datatype}")
    return wanted


def classified(tensor: Tensor, labels: Sequence[str], count: int, *, has_batch_dimension: bool) -> Tensor:
    """The ``count`` best classes, or as many as there are: BYTES ``[rows, k]``, or ``[k]`` for a model without a batch dimension.

    Each element is ``value:index`` or ``value:index:label``, the value with six decimals where it is a float. Best first; of equal
    values the lower index first; NaN counts as -inf. All dimensions beyond the batch are one row of classes.
    """
    array = tensor.array
    # Not -1 for the classes: an array without rows has no answer to that.
    rows = array.reshape(array.shape[0], math.prod(array.shape[1:])) if has_batch_dimension else array.reshape(1, -1)
    found = [_texts(row, labels, count) for row in rows]
    texts = np.empty((len(rows), min(count, rows.shape[1])), dtype=object)
    for position, row_texts in enumerate(found):
        texts[position, :] = row_texts
    return Tensor(Datatype.BYTES, texts if has_batch_dimension else texts[0])


def _texts(row: Array, labels: Sequence[str], count: int) -> list[bytes]:
    is_float = row.dtype.kind == "f"
    sortable = np.where(np.isnan(row), -np.inf, row) if is_float else row
    # Sorted backwards and read backwards, so that of equal values the lower index is first.
    best = len(row) - 1 - np.argsort(sortable[::-1], kind="stable")[::-1][:count]
    texts: list[bytes] = []
    for index in best.tolist():
        value = f"{row[index]:.6f}" if is_float else str(row[index])
        label = f":{labels[index]}" if index < len(labels) else ""
        texts.append(f"{value}:{index}{label}".encode())
    return texts
