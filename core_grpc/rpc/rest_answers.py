"""Answers of the Open Inference Protocol's REST form: JSON, or JSON with raw tensors behind it.

An output is binary where the caller asked for it (the output's ``binary_data``, else the request's ``binary_data_output``), else flat
JSON: FP16 and BF16 as the FP32 numbers they equal; 64-bit integers as numbers with all digits; non-finite values as the bare tokens
``NaN``, ``Infinity`` and ``-Infinity``, as Triton does and its clients read (strict JSON parsers do not: ask for binary data); BYTES as
strings, which must be UTF-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson

from core_grpc.errors import InvalidArgument, quoted
from core_grpc.rpc.content_types import BINARY_TYPE, JSON_TYPE
from core_grpc.rpc.raw_tensors import raw_from_array
from core_grpc.rpc.rest_numbers import FLOATS
from core_grpc.types import Array, Datatype, InferRequest, InferResponse

_HALVES = frozenset({Datatype.FP16, Datatype.BF16})

JsonFromArray: TypeAlias = Callable[[str, Datatype, Array], Any]


@dataclass(frozen=True, slots=True)
class RestBody:
    """An HTTP body for the caller."""

    content_type: str
    data: bytes
    json_bytes: int | None = None
    """Bytes of JSON before the raw tensors: the value of Inference-Header-Content-Length. None when all is JSON."""


def encode_infer_response(response: InferResponse, request: InferRequest) -> RestBody:
    """The answer's body, each output in the form that ``request`` asked for.

    Raises:
        InvalidArgument: an output asked for as JSON is BYTES that are not UTF-8.
    """
    header, raw = _encoded(response, request, json_from_array)
    if b"null" in header:
        header, raw = _encoded(response, request, json_from_array_with_tokens)
    if any(raw):
        return RestBody(BINARY_TYPE, b"".join([header, *raw]), len(header))
    return RestBody(JSON_TYPE, header)


def binary_outputs(response: InferResponse, request: InferRequest) -> frozenset[str]:
    """Names of the outputs that travel behind the JSON: by the output's own ``binary_data``, else by ``binary_data_output``."""
    wanted = {output.name: output.parameters.get("binary_data") for output in request.outputs}
    default = request.parameters.get("binary_data_output", False)
    return frozenset(name for name in response.outputs if (default if wanted.get(name) is None else wanted[name]))


def _encoded(response: InferResponse, request: InferRequest, json_from: Callable[[str, Datatype, Array], Any]) -> tuple[bytes, list[bytes]]:
    """The JSON, and the raw tensors behind it."""
    binary = binary_outputs(response, request)
    places = {output.name: output.place for output in request.outputs if output.place is not None}
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, tensor in response.outputs.items():
        encoded: dict[str, Any] = {"name": name, "datatype": tensor.datatype.value, "shape": tensor.array.shape}
        if name in places:
            encoded["parameters"] = places[name].write(raw_from_array(tensor.array))
        elif name in binary:
            raw.append(raw_from_array(tensor.array))
            encoded["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            encoded["data"] = json_from(name, tensor.datatype, tensor.array.reshape(-1))
        outputs.append(encoded)
    answer: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version, "outputs": outputs}
    if response.id:
        answer["id"] = response.id
    if response.parameters:
        answer["parameters"] = dict(response.parameters)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), raw


def json_from_array(name: str, datatype: Datatype, array: Array) -> Any:
    """The array, nested as its shape is, as something ``orjson.dumps`` with OPT_SERIALIZE_NUMPY writes.

    orjson writes non-finite numbers as null: where there is one in the text, ``json_from_array_with_tokens`` has to be used instead.

    Args:
        name: the output's name, for the error text.

    Raises:
        InvalidArgument: a BYTES element is not UTF-8.
    """
    if datatype is Datatype.BYTES:
        return _texts(name, array)
    if datatype in _HALVES:
        with np.errstate(invalid="ignore"):  # A signalling NaN is a NaN like any other.
            array = array.astype(np.float32)
    if not array.ndim:
        return array[()]
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def json_from_array_with_tokens(name: str, datatype: Datatype, array: Array) -> Any:
    """As ``json_from_array``, with non-finite numbers as ``NaN``, ``Infinity`` and ``-Infinity``."""
    value = json_from_array(name, datatype, array)
    if datatype not in FLOATS:
        return value
    parts = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
    with np.errstate(invalid="ignore"):
        odd = array[~np.isfinite(array)].tolist()
    tokens = [b"NaN" if math.isnan(number) else b"Infinity" if number > 0 else b"-Infinity" for number in odd]
    return orjson.Fragment(b"".join(piece for pair in zip(parts, [*tokens, b""], strict=True) for piece in pair))


def _texts(name: str, array: Array) -> Any:
    try:
        flat = [element.decode("utf-8") for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"output {quoted(name)} has BYTES that are not UTF-8 text, which JSON cannot carry: ask for it as binary data"
        ) from error
    if array.ndim == 1:
        return flat
    nested = np.empty(len(flat), dtype=object)
    nested[:] = flat
    return nested.reshape(array.shape).tolist()
