"""What a conversion fails with, apart from ``InvalidArgument``: the libraries that do it have no errors of their own."""

from __future__ import annotations

from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

LIBRARY_FAILURES = (
    ValidationError,
    InferenceError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    RuntimeError,
    runtime.Fail,
    runtime.InvalidArgument,
    runtime.InvalidGraph,
    runtime.NotImplemented,
    runtime.RuntimeException,
)
"""Of a model that a converter cannot take; the first line of their text says why."""

__all__ = ["LIBRARY_FAILURES"]
