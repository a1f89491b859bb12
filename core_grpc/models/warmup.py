"""The first runs of an instance, before any caller waits for it: engines allocate and choose kernels on first use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from core_grpc.backends.base import RequestInstance
from core_grpc.errors import BackendFailed, GatewayError, InvalidArgument
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec, TensorSpec

_log = logging.getLogger(__name__)


class _WarmUpRequest(NamedTuple):
    inputs: Mapping[str, Array]
    request: InferRequest | None = None
    is_abandoned: bool = False


def warm_up(instance: RequestInstance, spec: ModelSpec, count: int) -> None:
    """Runs zeros ``count`` times at batch 1 and at max_batch_size, on the instance's thread, and checks the outputs' batch dimension.

    Where an input has a variable size beyond the batch, 1 is tried, and a failure says nothing about the model: it is only logged.

    Raises:
        BackendFailed, InvalidArgument: the model cannot run what it declares.
    """
    is_guess = any(-1 in (item.shape[1:] if spec.max_batch_size else item.shape) for item in spec.inputs)
    for rows in sorted({1, spec.max_batch_size or 1}):
        inputs = zero_inputs(spec, rows)
        try:
            for _ in range(count):
                (part,) = instance.execute_requests([_WarmUpRequest(inputs)])
                if isinstance(part, GatewayError):
                    raise part
        except (BackendFailed, InvalidArgument) as error:
            if not is_guess:
                raise type(error)(f"warm-up with zeros at batch {rows} failed ([warmup] count = 0 skips it): {error.message}") from None
            _log.info("model %s version %s: warm-up with size 1 for variable sizes failed: %s", spec.name, spec.version, error.message)


def zero_inputs(spec: ModelSpec, rows: int) -> Mapping[str, Array]:
    """Zeros (empty BYTES) for every input that must be there; ``rows`` at a variable batch dimension, 1 at other variable ones."""
    return {item.name: _zeros(item, rows, has_batch=spec.max_batch_size > 0) for item in spec.inputs if not item.optional}


def _zeros(spec: TensorSpec, rows: int, *, has_batch: bool) -> Array:
    sizes = [1 if size == -1 else size for size in spec.shape]
    if has_batch:
        sizes[0] = rows
    if spec.datatype is Datatype.BYTES:
        return np.full(sizes, b"", dtype=object)
    return np.zeros(sizes, dtype=spec.datatype.dtype)
