"""Answers of models that ask for it (``[response_cache]`` in model.toml), given again to requests with the same content.

The key is the load of the model (a version that is loaded anew starts with nothing), its inputs, and its parameters where the model sees
them. What only chooses among the outputs, or is computed from them (``classification``), is done after the cache and no part of the key.
Failures are never kept. Kept arrays are copies that belong to the cache and cannot be written.

Identical requests that arrive while the first of them runs wait for its answer instead of running too. Each keeps its own deadline. A
caller who leaves takes nobody along: when it was the one that ran, the next one runs. When that run fails, each runs on its own, so that
nobody gets a failure that was another's (its deadline, a full queue). Requests with a ``timeout`` or ``priority`` of their own, which may
be refused where others are not, share neither way.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, TypeAlias

from core_grpc.errors import DeadlineExpired
from core_grpc.models.request_digest import request_digest
from core_grpc.models.statistics import ModelStatistics
from core_grpc.scheduler.cache import LruCache
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.types import Array, InferRequest, ParameterValue

Outputs: TypeAlias = Mapping[str, Array]
Infer: TypeAlias = Callable[[Mapping[str, Array], int, InferRequest | None], Coroutine[Any, Any, Execution]]

_QUEUE_PARAMETERS = frozenset({"timeout", "priority"})
"""They say how a request waits, not what it asks."""
_NONE: Mapping[str, ParameterValue] = MappingProxyType({})
_LOOP_BYTES = 64 << 10
"""Arrays up to this size are hashed and copied on the event loop: a thread would take longer to start than the work takes."""
_LOOP_ELEMENTS = 1024
"""The same for BYTES, by their number."""
_ENTRY_BYTES = 640
_ARRAY_BYTES = 192
"""What the objects around an answer and around each of its arrays take (64-bit CPython), so that small answers are not for nothing."""


class ResponseCache:
    """The answers of all models of a node, within ``max_bytes``. Belongs to the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.answers: LruCache[Outputs] = LruCache(max_bytes)
        self.secret = secrets.token_bytes(32)
        self._generations = count(1)

    def for_model(self, infer: Infer, statistics: ModelStatistics, *, parameters_matter: bool) -> ModelCache:
        """The cache of one load of a model, in front of its ``infer``.

        Args:
            infer: as ``Model.infer``.
            statistics: where hits and misses are counted.
            parameters_matter: whether the model sees the request's parameters.
        """
        return ModelCache(self, next(self._generations), infer, statistics, parameters_matter=parameters_matter)


class _Flight:
    """A request that runs, and for which others with the same content wait."""

    __slots__ = ("has_failed", "landed", "outputs")

    def __init__(self) -> None:
        self.landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outputs: Outputs | None = None
        self.has_failed = False
        """It ended without outputs, and not because its caller left."""


class ModelCache:
    """See ``ResponseCache.for_model``."""

    def __init__(
        self, shared: ResponseCache, generation: int, infer: Infer, statistics: ModelStatistics, *, parameters_matter: bool
    ) -> None:
        self._shared = shared
        self._generation = generation
        self._infer = infer
        self._statistics = statistics
        self._parameters_matter = parameters_matter
        self._flights: dict[bytes, _Flight] = {}
        self._is_closed = False

    async def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Execution:
        """As ``Model.infer``. An answer that nothing ran for has ``batch_rows`` 0, and its ``queue_s`` is the time until it was found.

        Raises:
            as ``Model.infer``.
        """
        began = time.monotonic()
        parameters = request.parameters if request else _NONE
        digest = await self._digest(inputs, parameters)
        outputs = self._shared.answers.get(self._generation, digest)
        if outputs is None and _QUEUE_PARAMETERS.isdisjoint(parameters):
            outputs = await self._others_answer(digest, request)
            if outputs is None and digest not in self._flights:
                return await self._lead(digest, inputs, rows, request, began)
        if outputs is None:
            return await self._run(digest, inputs, rows, request, began)
        found_s = time.monotonic() - began
        self._statistics.cache_hit.add(found_s)
        return Execution(outputs, found_s, 0.0, 0)

    def close(self) -> None:
        """Forgets the model's answers; none is kept any more."""
        self._is_closed = True
        self._shared.answers.forget(self._generation)

    async def _digest(self, inputs: Mapping[str, Array], parameters: Mapping[str, ParameterValue]) -> bytes:
        seen = _NONE
        if parameters and self._parameters_matter:
            seen = {name: value for name, value in parameters.items() if name not in _QUEUE_PARAMETERS}
        if _is_large(inputs):
            return await asyncio.get_running_loop().run_in_executor(None, request_digest, self._shared.secret, inputs, seen)
        return request_digest(self._shared.secret, inputs, seen)

    async def _others_answer(self, digest: bytes, request: InferRequest | None) -> Outputs | None:
        """The answer to an identical request that runs; None where there is none, or it failed.

        Raises:
            DeadlineExpired: it did not come in time.
        """
        while (flight := self._flights.get(digest)) is not None:
            deadline = request.deadline if request else None
            await asyncio.wait((flight.landed,), timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
            if not flight.landed.done():
                raise DeadlineExpired("the deadline passed before the answer to an identical request was there")
            if flight.outputs is not None or flight.has_failed:
                return flight.outputs
        return None

    async def _lead(self, digest: bytes, inputs: Mapping[str, Array], rows: int, request: InferRequest | None, began: float) -> Execution:
        flight = self._flights[digest] = _Flight()
        try:
            execution = await self._run(digest, inputs, rows, request, began)
            flight.outputs = execution.outputs
        except Exception:
            flight.has_failed = True
            raise
        finally:
            del self._flights[digest]
            flight.landed.set_result(None)
        return execution

    async def _run(self, digest: bytes, inputs: Mapping[str, Array], rows: int, request: InferRequest | None, began: float) -> Execution:
        looked_s = time.monotonic() - began
        kept_s = 0.0
        try:
            execution = await self._infer(inputs, rows, request)
            ran = time.monotonic()
            await self._keep(digest, execution.outputs)
            kept_s = time.monotonic() - ran
        finally:
            self._statistics.cache_miss.add(looked_s + kept_s)
        return execution._replace(queue_s=looked_s + execution.queue_s)

    async def _keep(self, digest: bytes, outputs: Outputs) -> None:
        if sum(array.nbytes for array in outputs.values()) > self._shared.answers.max_bytes:
            return
        if _is_large(outputs):
            kept, nbytes = await asyncio.get_running_loop().run_in_executor(None, _copied, outputs)
        else:
            kept, nbytes = _copied(outputs)
        # The model may have gone while a thread copied.
        if not self._is_closed:
            self._shared.answers.put(self._generation, digest, kept, nbytes)


def _copied(outputs: Outputs) -> tuple[Outputs, int]:
    """Copies that nobody can write, and what they cost in memory: an output may be a view of a whole batch, or of a request's body."""
    kept: dict[str, Array] = {}
    nbytes = _ENTRY_BYTES
    for name, array in outputs.items():
        own = kept[name] = array.copy(order="C")
        own.setflags(write=False)
        nbytes += _ARRAY_BYTES + own.nbytes
        if own.dtype.hasobject:
            nbytes += sum(map(sys.getsizeof, own.reshape(-1).tolist()))
    return kept, nbytes


def _is_large(arrays: Mapping[str, Array]) -> bool:
    size = 0
    for array in arrays.values():
        size += array.nbytes
        if array.dtype.hasobject:
            if array.size > _LOOP_ELEMENTS:
                return True
            size += sum(map(len, array.reshape(-1).tolist()))
    return size > _LOOP_BYTES
