"""ONNX Runtime's exceptions as ours: the useful part of their text, without source locations, paths or C++ signatures."""

from __future__ import annotations

import re

from onnxruntime.capi import onnxruntime_pybind11_state as state

from core_grpc.errors import BackendFailed, GatewayError, InvalidArgument

_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |"
    r"Load model from .* failed:|"
    r".*Status Message: |"
    r"Exception during initialization: |"
    r"\S+\.(?:cc|cpp|h|hpp|cu):\d+ (?:[\w:~<>]+\(.*?\)(?: const)? |\w+ (?=[A-Z]))?"
)
_PATH = re.compile(r"\"?(?:/[\w.+@-]+){2,}/?\"?|\"?[A-Za-z]:\\\S+\"?")
_LIMIT = 300


def engine_text(error: Exception) -> str:
    """What the engine said, in one short line without paths."""
    text = " ".join(_NOISE.sub("", " ".join(str(error).split())).split())
    text = _PATH.sub("(path)", text)
    return (text if len(text) <= _LIMIT else text[: _LIMIT - 1] + "…").rstrip(" .") or type(error).__name__


def failure_from_run(error: Exception) -> GatewayError:
    """The failure of a run: the engine's INVALID_ARGUMENT speaks about the request's values, everything else about the engine."""
    if isinstance(error, state.InvalidArgument):
        return InvalidArgument(f"the model refused the request: {engine_text(error)}")
    return BackendFailed(f"the model failed on this request: {engine_text(error)}")
