"""The code that runs models, one module or package for each kind, imported when the first model of the kind is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from core_grpc.backends.base import Backend

__all__ = ["BACKENDS", "BackendEntry", "load_backend"]


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A row of ``BACKENDS``."""

    module: str
    """Imported on first use: engines are large."""
    backend_class: str
    model_file: str
    """The file in a version directory that belongs to it; empty for a backend without a file."""


BACKENDS: Mapping[str, BackendEntry] = {
    "onnxruntime": BackendEntry("core_grpc.backends.onnxruntime.backend", "OnnxRuntimeBackend", "model.onnx"),
    "python": BackendEntry("core_grpc.backends.python.backend", "PythonBackend", "model.py"),
    "identity": BackendEntry("core_grpc.backends.identity", "IdentityBackend", ""),
}
"""By the name that model.toml gives (``backend = "…"``)."""


def load_backend(name: str) -> Backend:
    """The backend of that name; blocks while it is imported.

    Raises:
        KeyError: there is none.
    """
    entry = BACKENDS[name]
    backend: Backend = getattr(import_module(entry.module), entry.backend_class)()
    return backend
