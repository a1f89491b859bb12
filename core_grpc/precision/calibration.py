"""Data of the user's own, read from a file: what INT8 is calibrated with and precisions are compared on."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from core_grpc.errors import InvalidArgument


def read_samples(path: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    """The arrays of an ``.npz`` file, by the name of the input that takes them, ``[samples, …]``. Nothing in the file is executed.

    Raises:
        InvalidArgument: it is no such file, or an array has no samples.
    """
    if not path.is_file():
        raise InvalidArgument(f"data: there is no file {path.name}; wanted an .npz file with an array for each input")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InvalidArgument(f"data: {path.name}: wanted an .npz file, with a name for each array, got one array")
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise InvalidArgument(f"data: {path.name}: wanted an .npz file of numbers, got something else") from None
    for name, array in arrays.items():
        if array.ndim == 0 or not len(array):
            raise InvalidArgument(f"data: {path.name}: array {name!r}: wanted samples along its first axis, got the shape {array.shape}")
    return arrays
