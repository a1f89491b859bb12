"""A request in a message: written by the server, read in the model's process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from core_grpc.backends.python.framing import TensorReader, Tensors
from core_grpc.python_model import Request
from core_grpc.types import Array, InferRequest


def described_request(inputs: Mapping[str, Array], request: InferRequest | None, tensors: Tensors) -> dict[str, Any]:
    """What the header says about a request; its tensors are added to ``tensors``."""
    deadline = request.deadline if request else None
    return {
        "id": request.id if request else "",
        "parameters": dict(request.parameters) if request else {},
        # Seconds from now: the processes' clocks are one on Linux, but not everywhere.
        "remaining_s": None if deadline is None else max(deadline - time.monotonic(), 0.0),
        "tensors": tensors.described(inputs),
    }


def request_from(described: Mapping[str, Any], reader: TensorReader) -> Request:
    """The request as user code sees it."""
    remaining_s = described["remaining_s"]
    deadline = None if remaining_s is None else time.monotonic() + remaining_s
    return Request(reader.tensors(described["tensors"]), described["id"], described["parameters"], deadline)
