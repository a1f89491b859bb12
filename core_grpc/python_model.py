"""What ``model.py`` of the Python backend may import. docs/python-models.md is the tutorial.

A model is a class named ``Model``::

    class Model:
        def initialise(self, context): ...            # optional; once, before the first request
        def execute(self, requests): ...              # one entry for each request
        def finalise(self): ...                       # optional; once, at the end

``execute`` gives a list with an entry for each request: a dict of output name to array, or an ``InferenceError`` for that request alone.
A decoupled model (``[python] decoupled = true``) has ``execute(self, request)`` instead, an async generator (or a plain one, which runs on
a thread) that yields such a dict for each answer. ``initialize`` and ``finalize`` are taken too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from core_grpc.types import Array, ParameterValue

CODES = ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE", "INTERNAL")
"""What an ``InferenceError`` may say."""


class InferenceError(Exception):
    """Why one request has no answer. Returned in the request's place, or raised where there is one request."""

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT") -> None:
        """``message`` is one line for the caller; ``code`` is one of ``CODES``, a gRPC status.

        Raises:
            ValueError: another code.
        """
        if code not in CODES:
            raise ValueError(f"code: wanted one of {', '.join(CODES)}, got {code!r}")
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What ``initialise`` is told."""

    name: str
    version: str
    directory: Path
    """The version's directory, where ``model.py`` is."""
    parameters: Mapping[str, Any]
    """``[python.parameters]`` of model.toml."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    instance: int
    """Which of the model's instances this process is, from 0."""
    kind: Literal["cpu", "gpu"] = "cpu"
    """Where ``[instances]`` puts it. On which device it computes is up to the model."""
    device_id: int = 0
    """The GPU's number, as CUDA numbers those that this process sees; 0 on the CPU."""


@dataclass(slots=True)
class Request:
    """One request."""

    inputs: Mapping[str, Array]
    """Arrays with the shapes that model.toml declares, the batch dimension first where there is one; BYTES as arrays of ``bytes``.
    They are read-only views."""
    id: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    deadline: float | None = None
    """Monotonic seconds (``time.monotonic``) after which nobody waits for the answer."""
    is_cancelled: bool = False
    """Whether the caller has left: becomes true while ``execute`` runs. A decoupled model's generator is closed instead."""

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline, not below 0; None where there is none."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
