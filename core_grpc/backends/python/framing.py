"""Messages between the server and a model's process, over a stream socket.

A message is a prefix (the lengths of header and payload, little-endian), a JSON header, and the payload: the raw bytes of the header's
tensors, one after the other. Never pickle: what a model's process sends is not trusted with more than its own answers. BYTES elements are
each behind their length in four little-endian bytes, as in the Open Inference Protocol.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core_grpc.types import DATATYPES, Array, Datatype, datatype_from_dtype

PREFIX = struct.Struct("<IQ")

_MOST_HEADER_BYTES = 1 << 26
_MOST_PAYLOAD_BYTES = 1 << 34
"""Several requests of the largest message that gRPC has."""

_MOST_BUFFERS = 512
"""Buffers of one ``sendmsg``; systems allow 1024."""


class Frame(NamedTuple):
    """A received message."""

    header: dict[str, Any]
    payload: memoryview


class Tensors:
    """Collects a message's tensors: their descriptions for the header, and their bytes."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def described(self, tensors: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Adds the tensors and gives what the header says about them."""
        described: list[dict[str, Any]] = []
        for name, array in tensors.items():
            buffer = _buffer(array)
            self.buffers.append(buffer)
            datatype = Datatype.BYTES if array.dtype.hasobject else datatype_from_dtype(array.dtype)
            described.append({"name": name, "datatype": datatype.value, "shape": array.shape, "nbytes": len(buffer)})
        return described


class TensorReader:
    """Takes a message's tensors from its payload, in the order in which they were added."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._at = 0

    def tensors(self, described: Iterable[Mapping[str, Any]]) -> dict[str, Array]:
        """The tensors as views of the payload.

        Raises:
            ValueError, KeyError: the description does not fit the payload.
        """
        return {str(item["name"]): self._next(item) for item in described}

    def _next(self, item: Mapping[str, Any]) -> Array:
        part = self._payload[self._at : self._at + item["nbytes"]]
        self._at += item["nbytes"]
        datatype, shape = DATATYPES[item["datatype"]], tuple(item["shape"])
        if datatype is Datatype.BYTES:
            return _elements(part, shape)
        return np.frombuffer(part, dtype=datatype.dtype).reshape(shape)


def packed(header: Mapping[str, Any], buffers: Sequence[memoryview] = ()) -> list[memoryview]:
    """A message as the buffers to send."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return [memoryview(PREFIX.pack(len(text), sum(map(len, buffers))) + text), *buffers]


def send(connection: socket.socket, message: list[memoryview]) -> None:
    """Sends all of a message; blocks.

    Raises:
        OSError: the other side is gone.
    """
    left = [buffer for buffer in message if len(buffer)]
    while left:
        sent = connection.sendmsg(left[:_MOST_BUFFERS])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def sizes_from(prefix: bytes | memoryview) -> tuple[int, int]:
    """The lengths of header and payload.

    Raises:
        ValueError: no message is so large; whoever sent it does not speak this protocol.
    """
    header_bytes, payload_bytes = PREFIX.unpack(prefix)
    if header_bytes > _MOST_HEADER_BYTES or payload_bytes > _MOST_PAYLOAD_BYTES:
        raise ValueError(f"a message of {header_bytes} and {payload_bytes} bytes")
    return header_bytes, payload_bytes


def receive(connection: socket.socket) -> Frame:
    """The next message; blocks.

    Raises:
        EOFError: the other side is gone.
    """
    header_bytes, payload_bytes = sizes_from(_received(connection, PREFIX.size))
    header = json.loads(bytes(_received(connection, header_bytes)))
    return Frame(header, _received(connection, payload_bytes))


def _received(connection: socket.socket, size: int) -> memoryview:
    whole = memoryview(bytearray(size))
    at = 0
    while at < size:
        count = connection.recv_into(whole[at:])
        if not count:
            raise EOFError
        at += count
    return whole


def _buffer(array: Array) -> memoryview:
    if array.dtype.hasobject:
        elements = array.reshape(-1).tolist()
        return memoryview(b"".join(part for element in elements for part in (len(element).to_bytes(4, "little"), element)))
    # As bytes: the extension dtypes (BF16) have no buffer of their own.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _elements(part: memoryview, shape: tuple[int, ...]) -> Array:
    elements: list[bytes] = []
    at = 0
    while at < len(part):
        size = int.from_bytes(part[at : at + 4], "little")
        elements.append(bytes(part[at + 4 : at + 4 + size]))
        at += 4 + size
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)
