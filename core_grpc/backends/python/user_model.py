"""The user's ``model.py``, found, imported and made, in the model's process."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from core_grpc.backends.python.answers import WrongAnswer
from core_grpc.python_model import InferenceError, ModelContext

MODEL_FILE = "model.py"
_MODULE = "tensorgate_user_model"


class ModelBroken(Exception):
    """``model.py`` cannot be used; the message says why in one line."""


def made_model(directory: Path, context: ModelContext) -> Any:
    """An initialised ``Model`` of the version's directory. Its own modules are found there and in the model's directory.

    Raises:
        ModelBroken: the file cannot be imported, has no ``Model`` with ``execute``, or ``initialise`` raised.
    """
    sys.path[:0] = [str(directory), str(directory.parent)]
    try:
        model = _model_class(directory)()
        _check_execute(model)
        if initialise := _either(model, "initialise", "initialize"):
            initialise(context)
    except ModelBroken:
        raise
    except BaseException as error:
        traceback.print_exc()
        raise ModelBroken(failure_text(error)) from error
    return model


def _model_class(directory: Path) -> type[Any]:
    spec = importlib.util.spec_from_file_location(_MODULE, directory / MODEL_FILE)
    if spec is None or spec.loader is None:
        raise ModelBroken(f"{MODEL_FILE} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    if not isinstance(made := getattr(module, "Model", None), type):
        raise ModelBroken(f"{MODEL_FILE} has no class Model")
    return made


def _check_execute(model: Any) -> None:
    if not callable(getattr(model, "execute", None)):
        raise ModelBroken(f"class Model of {MODEL_FILE} has no method execute")


def finalise(model: Any) -> None:
    """Calls ``finalise`` if there is one; what it raises is only printed."""
    try:
        if method := _either(model, "finalise", "finalize"):
            method()
    except Exception:  # noqa: BLE001 (user code; the process ends)
        traceback.print_exc()


def told(error: Exception) -> str:
    """What is told of a failed execution; the traceback of user code goes to its output."""
    if isinstance(error, WrongAnswer):
        return str(error)
    traceback.print_exception(error)
    return failure_text(error)


def failure_text(error: BaseException) -> str:
    """An exception of user code in one line: type, text, and the line of model.py that it passed through last; no path."""
    if isinstance(error, InferenceError):
        return error.message
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == MODEL_FILE]
    where = f" ({MODEL_FILE}, line {lines[-1]})" if lines else ""
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == MODEL_FILE:
        return f"SyntaxError: {error.msg} ({MODEL_FILE}, line {error.lineno})"
    return f"{type(error).__name__}: {error}{where}"


def _either(model: Any, *names: str) -> Any:
    return next((getattr(model, name) for name in names if callable(getattr(model, name, None))), None)
