"""The vectors: requests and what they mean, in a form that belongs to no door. ``tests/vectors/*.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DIRECTORY = Path(__file__).resolve().parent.parent / "vectors"

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True)
class VectorTensor:
    """A tensor as the vector file writes it: values flat, row-major; BYTES as text."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]

    def array(self) -> np.ndarray[Any, Any]:
        """The values, flat; BYTES as an object array of bytes."""
        if self.datatype == "BYTES":
            array = np.empty(len(self.data), dtype=object)
            array[:] = [text.encode() for text in self.data]
            return array
        # A datatype that does not exist still needs bytes to send.
        return np.array(self.data, dtype=DTYPES.get(self.datatype, np.float32))

    def raw(self) -> bytes:
        """The values in raw form."""
        if self.datatype == "BYTES":
            return b"".join(len(e).to_bytes(4, "little") + e for e in self.array().tolist())
        return self.array().tobytes()


@dataclass(frozen=True)
class Vector:
    """One request and its meaning."""

    name: str
    model: str
    inputs: list[VectorTensor]
    version: str = ""
    outputs: list[str] = field(default_factory=list)
    expect: list[VectorTensor] = field(default_factory=list)
    status: str = "OK"
    mentions: list[str] = field(default_factory=list)
    """Words that the error text must have: the field, what was wanted, what came."""
    cases: list[str] = field(default_factory=list)
    """Ids of the collected bug reports that this vector replays."""
    not_on: dict[str, str] = field(default_factory=dict)
    """Doors that cannot say this, with the reason."""


def load_vectors(stem: str) -> list[Vector]:
    """The vectors of one file."""
    rows = json.loads((DIRECTORY / f"{stem}.json").read_text(encoding="utf-8"))["vectors"]
    return [_vector(row) for row in rows]


def _vector(row: dict[str, Any]) -> Vector:
    tensors = {key: [VectorTensor(**item) for item in row.get(key, [])] for key in ("inputs", "expect")}
    return Vector(**{**row, **tensors})
