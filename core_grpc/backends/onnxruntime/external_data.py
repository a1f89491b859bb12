"""Where an ONNX file keeps tensors outside itself, and whether it may.

A tensor of an ONNX model can name a file that holds its data. A model that names a file of somebody else would read it and give it
back as an answer, so every such name is checked before an engine opens anything. Engines check too, each version a little differently
(ONNX Runtime 1.32 follows hard links); this check does not depend on them.

The file is read with a small walk over protobuf's wire format along the fields that can hold tensors (onnx.proto, field numbers
below), because neither the onnx package nor its generated code is a dependency.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core_grpc.errors import ModelLoadFailed, quoted

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION, _TRAINING, _ENTRY = range(9)

_CHILDREN: Mapping[int, Mapping[int, int]] = {
    _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
}
"""Message to field number to the message in that field."""

_KEY, _VALUE = 1, 2
"""Fields of StringStringEntryProto."""

_DEPTH_LIMIT = 100
"""Protobuf's own."""


class _MalformedError(Exception):
    """Not protobuf."""


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """A model's files as they were when they were checked. The engine opens them by their names once more."""

    model_file: Path
    states: Mapping[Path, tuple[int, ...]]
    """Device, inode, size in bytes and time of change in ns, by file."""
    locations: tuple[str, ...]

    def check_unchanged(self) -> None:
        """To be called when the engine has read them: what it read is what was checked, and no half of a copy.

        Raises:
            ModelLoadFailed: a file is another one now.
        """
        _check_locations(self.model_file, self.locations)
        for path, state in self.states.items():
            if _state_of(path) != state:
                raise ModelLoadFailed(f"{path.name} changed while it was read: load the model again once it is complete")


def check_external_data(model_file: Path) -> CheckedFiles:
    """Refuses a model whose external data is not a plain file of its own directory.

    Raises:
        ModelLoadFailed: which location, and why.
    """
    with model_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        states = {model_file: _state(os.fstat(file.fileno()))}
        locations = _all_locations(model_file.name, content)
    _check_locations(model_file, locations)
    states |= {path: _state_of(path) for path in (model_file.parent / location for location in locations)}
    return CheckedFiles(model_file, states, locations)


def _all_locations(name: str, content: mmap.mmap) -> tuple[str, ...]:
    # Names in protobuf are plain text: a file without the word has no external data, and needs no walk.
    if content.find(b"location") == -1:
        return ()
    with memoryview(content) as view:
        try:
            return tuple(sorted(set(_locations(view, _MODEL, 0))))
        except _MalformedError:
            raise ModelLoadFailed(f"{name} is not an ONNX model: its content is not protobuf") from None


def _check_locations(model_file: Path, locations: Sequence[str]) -> None:
    for location in locations:
        if problem := _problem(location, model_file.parent):
            raise ModelLoadFailed(f"{model_file.name}: external data at {quoted(location)} is refused: {problem}")


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _state_of(path: Path) -> tuple[int, ...]:
    """Empty where there is no such file."""
    try:
        return _state(os.stat(path))  # noqa: PTH116 (as below)
    except OSError:
        return ()


def _problem(location: str, directory: Path) -> str:
    """Why ``location`` may not be read; empty when it may."""
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or ".." in parts or location.startswith(("/", "\\")) or ":" in parts[0]:
        return "wanted a file name relative to the model's directory, without '..'"
    path = directory
    for part in parts:
        path /= part
        if path.is_symlink():
            return "it is or passes through a symbolic link"
    try:
        status = os.stat(path)  # noqa: PTH116 (one call for both facts)
    except OSError:
        return "there is no such file beside the model"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a plain file"
    if status.st_nlink > 1:
        return "it is a hard link, and the file it shares may be somebody else's: copy it"
    return ""


def _locations(view: memoryview, message: int, depth: int) -> Iterator[str]:
    if depth > _DEPTH_LIMIT:
        raise _MalformedError
    children = _CHILDREN[message]
    for number, content in _fields(view):
        child = children.get(number)
        if child is _ENTRY:
            texts = list(_fields(content))
            if any(field == _KEY and bytes(text) == b"location" for field, text in texts):
                yield from (bytes(text).decode("utf-8", "replace") for field, text in texts if field == _VALUE)
        elif child is not None:
            yield from _locations(content, child, depth + 1)


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of the length-delimited fields; the others hold no messages."""
    position, end = 0, len(view)
    while position < end:
        tag, position = _varint(view, position)
        kind = tag & 7
        if kind == 2:
            length, position = _varint(view, position)
            if position + length > end:
                raise _MalformedError
            yield tag >> 3, view[position : position + length]
            position += length
        elif kind == 0:
            position = _varint(view, position)[1]
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise _MalformedError


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        try:
            byte = view[position]
        except IndexError:
            raise _MalformedError from None
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _MalformedError
