"""Every backend's instances under one contract, ``RequestInstance``: requests in, their own outputs back.

For an instance that executes arrays, the requests are stacked before it and its outputs are cut after it, on the instance's thread,
where the copies do not hold up the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from core_grpc.backends.base import ModelInstance, ModelRequest, RequestInstance, StagingInstance
from core_grpc.errors import GatewayError
from core_grpc.scheduler.batch import parts_of
from core_grpc.scheduler.batch_buffers import BatchBuffers
from core_grpc.scheduler.padding import BatchForm
from core_grpc.scheduler.ragged import RaggedForm
from core_grpc.types import Array

if TYPE_CHECKING:
    from core_grpc.processing.outputs import DerivedOutput


def request_instance(
    instance: ModelInstance | RequestInstance, derived: Sequence[DerivedOutput], form: BatchForm | RaggedForm, has_batch_dimension: bool
) -> RequestInstance:
    """The instance, taking requests and adding the derived outputs."""
    if not isinstance(instance, RequestInstance):
        inner = _DerivingArrays(instance, derived) if derived else instance
        buffers = BatchBuffers(instance.staging if isinstance(instance, StagingInstance) else None)
        return _StackingInstance(inner, has_batch_dimension, buffers) if form.is_plain else _FilledInstance(inner, form, buffers)
    return _DerivingRequests(instance, derived) if derived else instance


class _StackingInstance:
    def __init__(self, inner: ModelInstance, has_batch_dimension: bool, buffers: BatchBuffers) -> None:
        self._inner = inner
        self._has_batch_dimension = has_batch_dimension
        self._buffers = buffers

    def execute_requests(self, requests: Sequence[ModelRequest]) -> Sequence[Mapping[str, Array] | GatewayError]:
        members = [request.inputs for request in requests]
        outputs = self._buffers.owned(self._inner.execute(self._buffers.stack(members)))
        if not self._has_batch_dimension:
            return [outputs]
        return parts_of(outputs, [next(iter(member.values())).shape[0] for member in members])

    def close(self) -> None:
        self._inner.close()


class _FilledInstance:
    def __init__(self, inner: ModelInstance, form: BatchForm | RaggedForm, buffers: BatchBuffers) -> None:
        self._inner = inner
        self._form = form
        self._buffers = buffers

    def execute_requests(self, requests: Sequence[ModelRequest]) -> Sequence[Mapping[str, Array] | GatewayError]:
        members = [request.inputs for request in requests]
        outputs = self._buffers.owned(self._inner.execute(self._form.stack(members, self._buffers)))
        return self._form.parts(outputs, members)

    def close(self) -> None:
        self._inner.close()


class _DerivingArrays:
    def __init__(self, inner: ModelInstance, derived: Sequence[DerivedOutput]) -> None:
        from core_grpc.processing.outputs import apply_derived  # noqa: PLC0415 (only where a model wants it)

        self._inner = inner
        self._derived = derived
        self._apply = apply_derived

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._apply(self._inner.execute(inputs), self._derived)

    def close(self) -> None:
        self._inner.close()


class _DerivingRequests:
    def __init__(self, inner: RequestInstance, derived: Sequence[DerivedOutput]) -> None:
        from core_grpc.processing.outputs import apply_derived  # noqa: PLC0415 (see above)

        self._inner = inner
        self._derived = derived
        self._apply = apply_derived

    def execute_requests(self, requests: Sequence[ModelRequest]) -> Sequence[Mapping[str, Array] | GatewayError]:
        parts = self._inner.execute_requests(requests)
        return [part if isinstance(part, GatewayError) else self._apply(part, self._derived) for part in parts]

    def close(self) -> None:
        self._inner.close()
