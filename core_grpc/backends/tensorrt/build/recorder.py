"""What TensorRT says during one build: errors by its recorder, warnings and sizes by its log, noise of its compiler on standard output."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from core_grpc.backends.tensorrt.bindings import Bindings
from core_grpc.backends.tensorrt.build.remedies import is_stray

_TEXT_LIMIT = 400
_ACTIVATION = re.compile(r"Total Activation Memory: (\d+)")
_WEIGHTS = re.compile(r"Total Weights Memory: (\d+)")
_SEVERE = frozenset({"INTERNAL_ERROR", "ERROR"})


@dataclass(slots=True)
class ErrorRecord:
    """Errors of one build, in order, without those about a missing GPU."""

    errors: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Keeps one, once."""
        line = _short(text)
        if not is_stray(line) and line not in self.errors:
            self.errors.append(line)


@dataclass(slots=True)
class Journal:
    """What one build logged."""

    record: ErrorRecord
    warnings: list[str] = field(default_factory=list)
    activation_bytes: int | None = None
    weights_bytes: int | None = None

    def hear(self, severity: str, message: str) -> None:
        """A ``Listener`` of the flavour's logger."""
        if severity in _SEVERE:
            self.record.add(message)
        elif severity == "WARNING":
            self._warn(_short(message))
        elif match := _ACTIVATION.search(message):
            # One line for each part of the network that is compiled on its own: they take turns.
            self.activation_bytes = max(self.activation_bytes or 0, int(match[1]))
        elif match := _WEIGHTS.search(message):
            self.weights_bytes = (self.weights_bytes or 0) + int(match[1])

    def _warn(self, line: str) -> None:
        if not is_stray(line) and line not in self.warnings:
            self.warnings.append(line)


def recorder_for(bindings: Bindings, record: ErrorRecord) -> Any:
    """TensorRT's ``IErrorRecorder`` that fills ``record``. Its class is made here because its base is the flavour's."""
    base = bindings.module.IErrorRecorder

    class Recorder(base):  # type: ignore[misc, valid-type]
        """Names and arguments are TensorRT's."""

        def __init__(self) -> None:
            base.__init__(self)
            self._errors: list[tuple[Any, str]] = []

        def report_error(self, code: Any, description: str) -> bool:
            self._errors.append((code, description))
            record.add(description)
            return False

        def num_errors(self) -> int:
            return len(self._errors)

        def get_error_code(self, index: int) -> Any:
            return self._errors[index][0]

        def get_error_desc(self, index: int) -> str:
            return self._errors[index][1]

        def has_overflowed(self) -> bool:
            return False

        def clear(self) -> None:
            self._errors.clear()

    return Recorder()


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Keeps what libraries print to the process's standard output out of it: the compiler writes past the logger."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with tempfile.TemporaryFile() as sink:
            os.dup2(sink.fileno(), 1)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1] + "…"
