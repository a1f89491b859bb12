"""numpy arrays to ONNX Runtime's values and back, for the datatypes where the two differ.

* BYTES: ONNX strings are UTF-8 text. ONNX Runtime wants ``str`` elements; given ``bytes`` it stores their Python spelling (``b'ab'``)
  without a word. So elements are decoded here, and what is not UTF-8 is refused.
* BF16: ONNX Runtime takes and gives it only as OrtValue, whose content is copied out by address.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime

from core_grpc.errors import InvalidArgument
from core_grpc.types import Array, Datatype

_ONNX_BFLOAT16 = 16
"""TensorProto.BFLOAT16."""


def strings_from_bytes(array: Array, name: str) -> Array:
    """The elements of the BYTES input ``name`` as ``str``, same shape.

    Raises:
        InvalidArgument: an element is not UTF-8.
    """
    texts = np.empty(array.size, dtype=object)
    for position, element in enumerate(array.reshape(-1).tolist()):
        try:
            texts[position] = element.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"input '{name}' element {position}: this model takes UTF-8 text, "
                f"got {len(element)} bytes that are not, from byte {error.start} on"
            ) from None
    return texts.reshape(array.shape)


def bytes_from_strings(array: Array) -> Array:
    """An ONNX string output as BYTES: the elements as UTF-8, same shape."""
    elements = np.empty(array.size, dtype=object)
    elements[:] = [text.encode() for text in array.reshape(-1).tolist()]
    return elements.reshape(array.shape)


def ort_value_from_array(array: Array, datatype: Datatype) -> Any:
    """An OrtValue over the array's memory (BF16), or with a copy of its elements."""
    if datatype is Datatype.BF16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), _ONNX_BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def array_from_ort_value(value: Any, datatype: Datatype) -> Array:
    """A copy of the OrtValue's content."""
    if datatype is not Datatype.BF16:
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    content = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(content, dtype=Datatype.BF16.dtype).reshape(value.shape())
