"""REST's binary tensor extension: ``JSON ‖ raw tensors``, cut by the header ``Inference-Header-Content-Length``.

The raw tensors follow the JSON in the order of the tensors that carry ``binary_data_size``. A header of 0 means that there is no JSON: the
body is the values of the model's only input, whose shape is deduced (``raw_binary_input``).
"""

from __future__ import annotations

import math

from core_grpc.errors import InvalidArgument, InvalidTensor, quoted
from core_grpc.rpc.raw_tensors import array_from_raw, bytes_array
from core_grpc.types import Datatype, ModelSpec, Tensor

LENGTH_HEADER = "inference-header-content-length"
"""In lower case, as metadata has it. Bytes of JSON at the start of the body."""

_DIGITS = 19
"""More digits than any body's length has."""


class BinaryTail:
    """The raw tensors behind the JSON, taken one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken_bytes = 0

    def take(self, name: str, size_bytes: int) -> memoryview:
        """The next ``size_bytes``, for input ``name``, without copying.

        Raises:
            InvalidTensor: so many are not left.
        """
        left = len(self._data) - self._taken_bytes
        if size_bytes > left:
            raise InvalidTensor(
                f"input {quoted(name)} has binary_data_size {size_bytes}: only {left} bytes are left behind the JSON header"
            )
        start = self._taken_bytes
        self._taken_bytes += size_bytes
        return self._data[start : self._taken_bytes]

    def finish(self) -> None:
        """Refuses bytes that no input took.

        Raises:
            InvalidArgument: there are some.
        """
        left = len(self._data) - self._taken_bytes
        if left:
            raise InvalidArgument(f"unexpected additional input data: {left} bytes behind the last input's")


def is_length(header: str) -> bool:
    """Whether the header's value is a plain number."""
    return header.isascii() and header.isdigit() and len(header) <= _DIGITS


def json_length(header: str, body_bytes: int) -> int:
    """The header's value: 0 to the length of the body.

    Raises:
        InvalidArgument: it is not a plain number, or is larger than the body.
    """
    if not is_length(header):
        raise InvalidArgument(f"header Inference-Header-Content-Length: wanted the bytes of JSON as digits, got {quoted(header, 40)}")
    length = int(header)
    if length > body_bytes:
        raise InvalidArgument(f"header Inference-Header-Content-Length: wanted at most the body's {body_bytes} bytes, got {length}")
    return length


def raw_binary_input(spec: ModelSpec, body: bytes) -> tuple[str, Tensor]:
    """Name and value of the model's only input, of which ``body`` is the raw form.

    The batch is one row; one variable dimension is deduced. A BYTES input must have one element, and the body is that element itself.

    Raises:
        InvalidArgument: the model has several inputs.
        InvalidTensor: the shape cannot be deduced, or the body does not fill it.
    """
    if len(spec.inputs) != 1:
        raise InvalidArgument(
            f"Raw request must only have 1 input (found {len(spec.inputs)}) to be deduced: model '{spec.name}' wants a JSON header"
        )
    wanted = spec.inputs[0]
    row_shape = list(wanted.shape[1:] if spec.max_batch_size else wanted.shape)
    batch = [1] if spec.max_batch_size else []
    if wanted.datatype is Datatype.BYTES:
        if any(dimension not in (1, -1) for dimension in row_shape):
            raise InvalidTensor(
                f"For BYTES datatype raw input, the model must have input shape [1]: input '{wanted.name}' wants a JSON header"
            )
        return wanted.name, Tensor(Datatype.BYTES, bytes_array([body], (1,) * (len(batch) + len(row_shape))))
    shape = tuple(batch + _deduced(wanted.name, row_shape, len(body), wanted.datatype))
    return wanted.name, Tensor(wanted.datatype, array_from_raw(wanted.name, wanted.datatype, shape, body))


def _deduced(name: str, row_shape: list[int], body_bytes: int, datatype: Datatype) -> list[int]:
    """The shape of the row, its one variable dimension filled in so that ``body_bytes`` fit."""
    if row_shape.count(-1) > 1:
        raise InvalidTensor(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized dimension"
        )
    if -1 not in row_shape:
        return row_shape
    known_bytes = math.prod(dimension for dimension in row_shape if dimension != -1) * datatype.itemsize
    variable, rest = divmod(body_bytes, known_bytes) if known_bytes else (0, body_bytes)
    if rest:
        raise InvalidTensor(f"input byte size mismatch for input '{name}': wanted a multiple of {known_bytes} bytes, got {body_bytes}")
    return [variable if dimension == -1 else dimension for dimension in row_shape]
