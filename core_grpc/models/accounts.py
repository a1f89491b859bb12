"""The account of one request: it is counted once, when it has ended, in its model's statistics and in its caller's usage."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from core_grpc.models.model import Model
from core_grpc.models.statistics import FailureReason, failure_reason
from core_grpc.observability.usage_meter import CANCELLED, FAILED, OK, RequestCharge, UsageMeter
from core_grpc.types import Array, Datatype, InferRequest, Tensor


def charged(meter: UsageMeter | None, model: Model, request: InferRequest) -> tuple[InferRequest, RequestCharge | None]:
    """The request, charged to its caller, and the charge; as it is where nothing is metered."""
    if meter is None:
        return request, None
    charge = meter.open(model.spec.name, model.spec.version, nbytes_of(request.inputs))
    return request._replace(charge=charge), charge


def count_failure(model: Model, began: float, error: BaseException, charge: RequestCharge | None) -> None:
    """Counts a request that began at a moment of the monotonic clock and ended with ``error``."""
    reason = failure_reason(error)
    model.statistics.failed(time.monotonic() - began, reason)
    if charge:
        _close_failed(charge, reason)


def close_answered(charge: RequestCharge, outputs: Mapping[str, Tensor]) -> None:
    """Ends the charge of a request that was answered once."""
    charge.output_bytes += nbytes_of(outputs)
    charge.close(OK)


@contextmanager
def metered_stream(charge: RequestCharge | None) -> Iterator[None]:
    """Ends the charge of a request that is answered any number of times, when the context ends."""
    try:
        yield
    except BaseException as error:
        if charge:
            _close_failed(charge, failure_reason(error))
        raise
    if charge:
        charge.close(OK)


def nbytes_of(tensors: Mapping[str, Tensor]) -> int:
    """The size of tensors in bytes: of BYTES elements their content, without the length that stands before each on the wire."""
    size = 0
    for tensor in tensors.values():
        size += _content_bytes(tensor.array) if tensor.datatype is Datatype.BYTES else tensor.array.nbytes
    return size


def _content_bytes(array: Array) -> int:
    elements: Iterable[bytes] = array.reshape(-1).tolist()
    return sum(map(len, elements))


def _close_failed(charge: RequestCharge, reason: FailureReason) -> None:
    charge.close(CANCELLED if reason is FailureReason.CANCELED else FAILED)
