"""The tensors of a warm-up sample: made, or read from files in the model's own directory and held against what the model takes."""

from __future__ import annotations

import io
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from core_grpc.errors import ModelLoadFailed, one_line, quoted
from core_grpc.models.repository import file_in_model
from core_grpc.models.warmup_config import WarmupInput, WarmupSample
from core_grpc.types import Array, Datatype, ModelSpec, TensorSpec

_MOST_BYTES = 1 << 30
"""Of one input. A typing error in ``dims`` must not take the machine's memory."""
_RANDOM_INTEGERS = 128
_RANDOM_LETTERS = 16
_POINTER_BYTES = 8


def sample_inputs(sample: WarmupSample, spec: ModelSpec, controls: Mapping[str, Array], model_directory: Path) -> Mapping[str, Array]:
    """The inputs of a sample with all its rows; blocks on the disk.

    Args:
        spec: with the control inputs of sequences.
        controls: what those are where the sample does not give them.

    Raises:
        ModelLoadFailed: the sample does not fit the model, or a file is not there or holds something else.
    """
    rows = _rows(sample, spec)
    recorded = _recorded(sample, model_directory)
    known = [item.name for item in spec.inputs]
    for name in (*sample.inputs, *recorded):
        if name not in known:
            raise _failure(sample, f"the model has no input {quoted(name)}; it has {', '.join(map(quoted, known))}")
    inputs: dict[str, Array] = {}
    for item in spec.inputs:
        tensor = _Tensor(sample, item, rows, model_directory)
        if item.name in sample.inputs:
            inputs[item.name] = tensor.made(sample.inputs[item.name])
        elif item.name in recorded:
            inputs[item.name] = tensor.fitted(recorded[item.name], f"file {quoted(sample.file)}")
        elif item.name in controls:
            inputs[item.name] = controls[item.name]
        elif not item.optional:
            inputs[item.name] = tensor.made(WarmupInput())
    return inputs


def _failure(sample: WarmupSample, text: str) -> ModelLoadFailed:
    return ModelLoadFailed(f"model.toml: {sample.title}: {text}")


def _rows(sample: WarmupSample, spec: ModelSpec) -> int | None:
    """None for a model without a batch dimension."""
    most = spec.max_batch_size or 1
    if sample.batch_size > most:
        raise _failure(sample, f"batch_size: wanted 1 to {most}, the model's max_batch_size, got {sample.batch_size}")
    return sample.batch_size if spec.max_batch_size else None


class _Tensor:
    """One input of a sample: the rows that it needs, from the data of one of them or of all."""

    def __init__(self, sample: WarmupSample, spec: TensorSpec, rows: int | None, model_directory: Path) -> None:
        self._sample = sample
        self._spec = spec
        self._rows = rows
        self._model_directory = model_directory
        self._dims = spec.shape if rows is None else spec.shape[1:]
        """Of one row, as the model has it."""

    def made(self, config: WarmupInput) -> Array:
        """As the sample's table says."""
        if config.datatype not in (None, self._spec.datatype):
            raise self._failure(f"datatype: wanted {self._spec.datatype}, as the model has it, got {config.datatype}")
        if config.file.endswith(".npy"):
            where = f"file {quoted(config.file)}"
            return self.fitted(self._loaded(where, _content(self._sample, self._model_directory, config.file)), where, config.dims)
        dims = self._known_dims(config.dims)
        self._check_size(dims)
        if config.file:
            return self._raw(dims, config.file)
        return self._whole(self._random(dims) if config.is_random else self._zeros(dims))

    def fitted(self, array: Array, where: str, dims: tuple[int, ...] | None = None) -> Array:
        """Recorded data, of one row or of all, if it fits."""
        if array.dtype.newbyteorder("=") != self._spec.datatype.dtype:
            raise self._failure(f"{where}: wanted {self._spec.datatype.dtype}, for {self._spec.datatype}, got {array.dtype}")
        array = np.ascontiguousarray(array, self._spec.datatype.dtype).reshape(array.shape)
        wanted = self._dims if dims is None else self._known_dims(dims)
        if _fits(wanted, array.shape):
            return self._whole(array)
        if self._rows is not None and _fits((self._rows, *wanted), array.shape):
            return array
        of_all = "" if self._rows is None else f" for one row, or {[self._rows, *wanted]} for all"
        raise self._failure(f"{where}: wanted shape {list(wanted)}{of_all}, got {list(array.shape)}")

    def _failure(self, text: str) -> ModelLoadFailed:
        return _failure(self._sample, f"input {quoted(self._spec.name)}: {text}")

    def _known_dims(self, given: tuple[int, ...] | None) -> tuple[int, ...]:
        dims = self._dims if given is None else given
        if not _fits(self._dims, dims):
            raise self._failure(f"dims: wanted {list(self._dims)}, as the model has it (-1 is any), got {list(dims)}")
        if -1 in dims:
            raise self._failure(f"dims: wanted a size for each -1 of {list(dims)}, got none")
        return dims

    def _check_size(self, dims: tuple[int, ...]) -> None:
        nbytes = (self._rows or 1) * math.prod(dims) * (self._spec.datatype.itemsize or _POINTER_BYTES)
        if nbytes > _MOST_BYTES:
            raise self._failure(f"wanted at most {_MOST_BYTES} bytes, got {nbytes} for dims {list(dims)} and {self._rows or 1} rows")

    def _whole(self, row: Array) -> Array:
        return row if self._rows is None else np.repeat(row[np.newaxis], self._rows, axis=0)

    def _zeros(self, dims: tuple[int, ...]) -> Array:
        return np.full(dims, b"", object) if self._spec.datatype is Datatype.BYTES else np.zeros(dims, self._spec.datatype.dtype)

    def _random(self, dims: tuple[int, ...]) -> Array:
        generator, dtype = np.random.default_rng(0), self._spec.datatype.dtype
        if self._spec.datatype is Datatype.BYTES:
            letters = generator.integers(ord("a"), ord("z") + 1, (math.prod(dims), _RANDOM_LETTERS), np.uint8)
            return _objects([line.tobytes() for line in letters], dims)
        if self._spec.datatype is Datatype.BOOL or dtype.kind in "iu":
            return generator.integers(0, 2 if dtype.kind == "b" else _RANDOM_INTEGERS, dims).astype(dtype)
        return generator.random(dims, np.float32).astype(dtype)

    def _raw(self, dims: tuple[int, ...], name: str) -> Array:
        content, where = _content(self._sample, self._model_directory, name), f"file {quoted(name)}"
        count, all_rows = math.prod(dims), self._rows or 1
        whole = dims if self._rows is None else (self._rows, *dims)
        if self._spec.datatype is Datatype.BYTES:
            elements = self._elements(content, where)
            unit, got, array = "elements", len(elements), _objects(elements)
            sizes = (count, count * all_rows)
        else:
            unit, got, itemsize = "bytes", len(content), self._spec.datatype.itemsize
            sizes = (count * itemsize, count * itemsize * all_rows)
            array = np.frombuffer(content, self._spec.datatype.dtype) if got in sizes else np.empty(0)
        if got not in sizes:
            of_all = f", or {sizes[1]} for {all_rows} rows" if all_rows > 1 else ""
            raise self._failure(f"{where}: wanted {sizes[0]} {unit}, for {self._spec.datatype} {list(dims)}{of_all}, got {got}")
        return self._whole(array.reshape(dims)) if got == sizes[0] else array.reshape(whole)

    def _elements(self, content: bytes, where: str) -> list[bytes]:
        elements, at = [], 0
        while at < len(content):
            start = at + 4
            at = start + int.from_bytes(content[at:start], "little")
            if start > len(content) or at > len(content):
                raise self._failure(
                    f"{where}: wanted elements behind their length in four little-endian bytes, got one that ends too early"
                )
            elements.append(content[start:at])
        return elements

    def _loaded(self, where: str, content: bytes) -> Array:
        try:
            array = np.load(io.BytesIO(content), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise self._failure(f"{where}: wanted an array of NumPy: {one_line(str(error), 100)}") from None
        if not isinstance(array, np.ndarray):
            raise self._failure(f"{where}: wanted one array of NumPy, got an archive")
        return array


def _recorded(sample: WarmupSample, model_directory: Path) -> Mapping[str, Array]:
    """The arrays of the sample's archive by input name."""
    if not sample.file:
        return {}
    content = _content(sample, model_directory, sample.file)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(item.file_size for item in archive.infolist())
        if size > _MOST_BYTES:
            raise _failure(sample, f"file {quoted(sample.file)}: wanted at most {_MOST_BYTES} bytes when unpacked, got {size}")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise _failure(sample, f"file {quoted(sample.file)}: wanted arrays of NumPy: {one_line(str(error), 100)}") from None


def _content(sample: WarmupSample, model_directory: Path, name: str) -> bytes:
    path = file_in_model(model_directory, name)
    try:
        # Without waiting: a named pipe would hold up whoever opens it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            content = file.read(_MOST_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError as error:
        raise _failure(sample, f"file {quoted(name)} cannot be read: {error.strerror}") from None
    if content is None or len(content) > _MOST_BYTES:
        got = "no plain file" if content is None else "a larger one"
        raise _failure(sample, f"file {quoted(name)}: wanted a file of at most {_MOST_BYTES} bytes, got {got}")
    return content


def _objects(elements: list[bytes], dims: tuple[int, ...] = (-1,)) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(dims)


def _fits(wanted: tuple[int, ...], got: tuple[int, ...]) -> bool:
    return len(wanted) == len(got) and all(want in (size, -1) for want, size in zip(wanted, got, strict=True))
