"""Holds what user code answers against what model.toml declares, in the model's process, where the mistake was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core_grpc.types import DATATYPES, Array, Datatype


class WrongAnswer(Exception):
    """The model's code answered something that it may not."""


class DeclaredOutput:
    """An output as the process knows it."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self.datatype: Datatype = DATATYPES[described["datatype"]]
        self.shape: tuple[int, ...] = tuple(described["shape"])


def checked_outputs(answer: object, declared: Sequence[DeclaredOutput], rows: int | None, *, may_lack: bool = False) -> dict[str, Array]:
    """The answer to one request as arrays of the declared datatypes.

    Args:
        answer: what user code gave.
        rows: wanted in the first dimension; None where the model has no batch dimension.
        may_lack: whether outputs may be missing (an answer of a decoupled model).

    Raises:
        WrongAnswer: names the output, what was wanted and what came.
    """
    if not isinstance(answer, Mapping):
        raise WrongAnswer(f"wanted a dict of output name to array for each request, got {type(answer).__name__}")
    outputs: dict[str, Array] = {}
    for output in declared:
        if output.name in answer:
            outputs[output.name] = _checked(output, answer[output.name], rows)
        elif not may_lack:
            raise WrongAnswer(f"output '{output.name}' is missing")
    if unknown := [name for name in answer if name not in outputs]:
        raise WrongAnswer(f"output {str(unknown[0])!r} is not one that model.toml declares")
    return outputs


def _checked(output: DeclaredOutput, value: object, rows: int | None) -> Array:
    array = _elements(output, value) if output.datatype is Datatype.BYTES else _numbers(output, value)
    if array.ndim != len(output.shape) or any(want not in (-1, got) for want, got in zip(output.shape, array.shape, strict=True)):
        raise WrongAnswer(f"output '{output.name}': wanted shape {list(output.shape)}, got {list(array.shape)}")
    if rows is not None and array.shape[0] != rows:
        raise WrongAnswer(f"output '{output.name}': wanted {rows} rows, as the request has, got {array.shape[0]}")
    return array


def _numbers(output: DeclaredOutput, value: object) -> Array:
    wanted = output.datatype.dtype
    array = value if isinstance(value, np.ndarray | np.generic) else _from_plain(output, value)
    if array.dtype != wanted:
        raise WrongAnswer(f"output '{output.name}': wanted {output.datatype} ({wanted}), got {array.dtype}")
    return np.asarray(array)


def _from_plain(output: DeclaredOutput, value: object) -> Array:
    """Numbers and lists of them, which have no dtype of their own."""
    try:
        return np.array(value, dtype=output.datatype.dtype)
    except (TypeError, ValueError, OverflowError):
        raise WrongAnswer(f"output '{output.name}': wanted an array of {output.datatype}, got {type(value).__name__}") from None


def _elements(output: DeclaredOutput, value: object) -> Array:
    """BYTES: ``bytes`` and ``str`` elements, in arrays of objects or of fixed-width texts, or in lists."""
    array = np.asarray(value, dtype=object)
    flat = array.reshape(-1).tolist()
    for element in flat:
        if not isinstance(element, bytes | str):
            raise WrongAnswer(f"output '{output.name}': wanted elements of bytes or str, got {type(element).__name__}")
    result = np.empty(len(flat), dtype=object)
    result[:] = [element.encode() if isinstance(element, str) else element for element in flat]
    return result.reshape(array.shape)
