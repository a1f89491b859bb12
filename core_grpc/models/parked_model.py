"""A model that is known and not loaded: it answers for its metadata, and a request makes it come and waits for it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

from typing_extensions import override

from core_grpc.errors import ModelNotReady
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model import Model
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.types import Array, InferRequest


class Summon(Protocol):
    """Has a model version loaded."""

    async def __call__(self, name: str, version: str, deadline: float | None, nbytes: int) -> Model:
        """The loaded model, with one user more, for the request whose inputs have ``nbytes``; see ``OnDemand.resident``."""
        ...


class ParkedModel(Model):
    """Stands in for a model that was loaded and had to go. Its requests keep nobody from going: they wait for the one that comes."""

    is_resident = False

    def __init__(self, model: Model, lifecycle: Lifecycle[ModelState], summon: Summon) -> None:
        super().__init__(model.declared, lifecycle)
        self.statistics = model.statistics
        self._summon = summon

    def __repr__(self) -> str:
        return f"<ParkedModel {self.spec.name} {self.spec.version} {self.lifecycle!r}>"

    @override
    async def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Execution:
        """See ``Model.infer``. The wait for the load is part of ``queue_s``.

        Raises:
            QueueFull: too many requests wait for the load.
            DeadlineExpired: it took too long.
            ModelNotReady: it cannot be loaded now, or is another one by now; the text says why.
        """
        began = time.monotonic()
        model = await self._resident(inputs, request)
        waited = time.monotonic() - began
        try:
            execution = await model.infer(inputs, rows, request and _waited(request, waited))
        finally:
            model.release()
        return execution._replace(queue_s=execution.queue_s + waited)

    @override
    async def stream(self, inputs: Mapping[str, Array], request: InferRequest) -> AsyncGenerator[Execution, None]:
        model = await self._resident(inputs, request)
        try:
            async with aclosing(model.stream(inputs, request)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            model.release()

    async def _resident(self, inputs: Mapping[str, Array], request: InferRequest | None) -> Model:
        nbytes = sum(array.nbytes for array in inputs.values())
        model = await self._summon(self.spec.name, self.spec.version, request.deadline if request else None, nbytes)
        if model.spec != self.spec:
            # The inputs were held against what the model was.
            model.release()
            raise ModelNotReady(f"model '{self.spec.name}' was replaced by another one while the request waited for it: ask again")
        model.last_used = time.monotonic()
        return model

    @override
    async def drain(self) -> None:
        """Nothing runs here."""

    @override
    async def _close(self) -> None:
        """Nothing is held here; who waits is told by what the name stands for then."""


def _waited(request: InferRequest, waited: float) -> InferRequest:
    """The request, with what is left of its parameter ``timeout``, which bounds its wait."""
    timeout_us = request.parameters.get("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or not timeout_us:
        return request
    return request._replace(parameters={**request.parameters, "timeout": max(1, timeout_us - int(waited * 1e6))})
