"""What flows through the core: datatypes, tensors, requests, answers, and what a model takes and gives.

Immutable values over numpy: named tuples where one is made for every request (a frozen dataclass takes four times as long to make),
frozen dataclasses elsewhere. Protobuf stops at ``rpc/codec.py``, JSON at ``rpc/rest_codec.py``.

A tensor's array has the numpy dtype of its datatype (``Datatype.dtype``), C order, native little-endian; BYTES tensors are object
arrays whose elements are ``bytes``. Arrays may be read-only views of a request's body: nobody writes into a tensor they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Datatype(StrEnum):
    """The Open Inference Protocol's tensor datatypes, with Triton's BF16.

    What belongs to a datatype is an attribute of its member and not a look-up by it: hashing an enum member is a Python call.
    """

    dtype: np.dtype[Any]
    """The numpy dtype of arrays of this datatype; ``object`` for BYTES."""
    itemsize: int
    """Bytes an element takes on the wire; 0 for BYTES, whose elements vary."""

    BOOL = "BOOL", np.bool_
    INT8 = "INT8", "<i1"
    INT16 = "INT16", "<i2"
    INT32 = "INT32", "<i4"
    INT64 = "INT64", "<i8"
    UINT8 = "UINT8", "<u1"
    UINT16 = "UINT16", "<u2"
    UINT32 = "UINT32", "<u4"
    UINT64 = "UINT64", "<u8"
    FP16 = "FP16", "<f2"
    BF16 = "BF16", ml_dtypes.bfloat16
    FP32 = "FP32", "<f4"
    FP64 = "FP64", "<f8"
    BYTES = "BYTES", object

    def __new__(cls, name: str, dtype: Any = None) -> Self:
        """A member from its wire name and numpy dtype; a look-up by name, ``Datatype("FP32")``, does not come here."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.dtype = np.dtype(dtype)
        member.itemsize = 0 if dtype is object else member.dtype.itemsize
        return member


DATATYPES: Mapping[str, Datatype] = {datatype.value: datatype for datatype in Datatype}
"""By wire name; the lookup for untrusted text."""


def datatype_from_dtype(dtype: np.dtype[Any]) -> Datatype:
    """The datatype whose arrays have ``dtype``.

    Raises:
        KeyError: no datatype has it.
    """
    return _BY_DTYPE[dtype]


_BY_DTYPE: Mapping[np.dtype[Any], Datatype] = {datatype.dtype: datatype for datatype in Datatype}


_NONE: Mapping[str, Any] = MappingProxyType({})


class Tensor(NamedTuple):
    """A value with its datatype; the shape is the array's."""

    datatype: Datatype
    array: Array


ParameterValue: TypeAlias = bool | int | float | str


class Place(Protocol):
    """Where an output is written instead of being sent: a part of shared memory."""

    def write(self, data: bytes) -> Mapping[str, ParameterValue]:
        """Writes the output's raw form; gives the parameters by which the answer says where it is."""
        ...

    def release(self) -> None:
        """Lets go of the memory; nothing more will be written."""
        ...


class RequestedOutput(NamedTuple):
    """An output that the caller named, with its parameters (`binary_data`, `classification`, …)."""

    name: str
    parameters: Mapping[str, ParameterValue] = _NONE
    place: Place | None = None


class CallerStream:
    """A stream of requests, for whoever keeps something for it as long as it lasts. A context: it ends with it."""

    __slots__ = ("_watchers",)

    def __init__(self) -> None:
        self._watchers: set[Callable[[CallerStream], None]] = set()

    def on_end(self, watcher: Callable[[CallerStream], None]) -> None:
        """Calls ``watcher`` once when the stream ends, however often it is given."""
        self._watchers.add(watcher)

    def forget(self, watcher: Callable[[CallerStream], None]) -> None:
        """Does not call it after all."""
        self._watchers.discard(watcher)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._watchers:
            self._watchers.pop()(self)


class Charge(Protocol):
    """What one request is metered as."""

    def add_compute(self, ns: int) -> None:
        """Engine time that was spent on the request, in nanoseconds; also after its caller has left."""
        ...


class InferRequest(NamedTuple):
    """One inference, whatever door it came through."""

    model_name: str
    model_version: str
    """Digits; empty for the newest that is ready."""
    inputs: Mapping[str, Tensor]
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    """The outputs wanted; empty for all."""
    parameters: Mapping[str, ParameterValue] = _NONE
    deadline: float | None = None
    """Monotonic seconds (``time.monotonic``) after which nobody waits for the answer."""
    pipeline: str = ""
    """The pipeline that asks this of a step's model; empty where a caller asks."""
    stream: CallerStream | None = None
    """The stream it came on; None for a call of its own. Only set where there are parameters: a sequence may depend on it."""
    charge: Charge | None = None
    """Whose engine time this is; None where usage is not metered."""

    def on(self, stream: CallerStream | None) -> InferRequest:
        """The request as one of a stream."""
        return self._replace(stream=stream) if self.parameters else self


class Timing(NamedTuple):
    """Where the server spent the time of one request, in seconds."""

    preprocess_s: float
    queue_s: float
    compute_s: float
    batch_rows: int
    """Rows of the batch that the request was part of; 0 where nothing ran, because the answer was in the response cache."""


class InferResponse(NamedTuple):
    """The answer to one inference."""

    model_name: str
    model_version: str
    id: str
    outputs: Mapping[str, Tensor]
    """In the order asked for, or in the model's."""
    timing: Timing
    parameters: Mapping[str, ParameterValue] = _NONE
    """What the model or the server says about this answer."""


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
    decoupled: bool = False
    """Whether it answers a request any number of times (streams) instead of once."""
    splits_requests: bool = False
    """Whether a request may have more rows than ``max_batch_size``: it is run in parts."""
