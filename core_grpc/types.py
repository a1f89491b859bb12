"""What flows through the core: datatypes, tensors, requests, answers, and what a model takes and gives.

Plain frozen dataclasses over numpy. Protobuf stops at ``rpc/codec.py``, JSON at ``rpc/rest_codec.py``.

A tensor's array has the numpy dtype of its datatype (``Datatype.dtype``), C order, native little-endian; BYTES tensors are object
arrays whose elements are ``bytes``. Arrays may be read-only views of a request's body: nobody writes into a tensor they were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Datatype(StrEnum):
    """The Open Inference Protocol's tensor datatypes, with Triton's BF16."""

    BOOL = "BOOL"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of arrays of this datatype; ``object`` for BYTES."""
        return DTYPES[self]

    @property
    def itemsize(self) -> int:
        """Bytes an element takes on the wire; 0 for BYTES, whose elements vary."""
        return 0 if self is Datatype.BYTES else DTYPES[self].itemsize


DTYPES: Mapping[Datatype, np.dtype[Any]] = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.INT8: np.dtype("<i1"),
    Datatype.INT16: np.dtype("<i2"),
    Datatype.INT32: np.dtype("<i4"),
    Datatype.INT64: np.dtype("<i8"),
    Datatype.UINT8: np.dtype("<u1"),
    Datatype.UINT16: np.dtype("<u2"),
    Datatype.UINT32: np.dtype("<u4"),
    Datatype.UINT64: np.dtype("<u8"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.BF16: np.dtype(ml_dtypes.bfloat16),
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
    Datatype.BYTES: np.dtype(object),
}

DATATYPES: Mapping[str, Datatype] = {datatype.value: datatype for datatype in Datatype}
"""By wire name; the lookup for untrusted text."""


def datatype_from_dtype(dtype: np.dtype[Any]) -> Datatype:
    """The datatype whose arrays have ``dtype``.

    Raises:
        KeyError: no datatype has it.
    """
    return _BY_DTYPE[dtype]


_BY_DTYPE: Mapping[np.dtype[Any], Datatype] = {dtype: datatype for datatype, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value with its datatype; the shape is the array's."""

    datatype: Datatype
    array: Array


ParameterValue: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the caller named, with its parameters (`binary_data`, `classification`, …)."""

    name: str
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference, whatever door it came through."""

    model_name: str
    model_version: str
    """Digits; empty for the newest that is ready."""
    inputs: Mapping[str, Tensor]
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    """The outputs wanted; empty for all."""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    deadline: float | None = None
    """Monotonic seconds (``time.monotonic``) after which nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the server spent the time of one request, in seconds."""

    preprocess_s: float
    queue_s: float
    compute_s: float
    batch_rows: int
    """Rows of the batch that the request was part of."""


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The answer to one inference."""

    model_name: str
    model_version: str
    id: str
    outputs: Mapping[str, Tensor]
    """In the order asked for, or in the model's."""
    timing: Timing


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    """With the batch dimension, if the model has one; -1 is variable."""
    dimension_names: tuple[str, ...] = ()
    """Symbolic names, one for each dimension, empty where there is none; or nothing at all."""
    accepts: str = ""
    """``image`` where BYTES elements that hold an encoded image are accepted instead of numbers."""
    optional: bool = False
    """An input that may be left out."""
    description: str = ""
    labels: tuple[str, ...] = ()
    """On an output of scores: the name of each class of the last dimension."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model version takes and gives."""

    name: str
    version: str
    platform: str
    """Triton's word for the kind of model: ``onnxruntime_onnx``, ``tensorrt_plan``, ``identity``."""
    max_batch_size: int
    """Rows; 0 means that the model has no batch dimension."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    description: str = ""
    license: str = ""
