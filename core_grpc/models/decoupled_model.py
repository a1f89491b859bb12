"""A model that answers a request any number of times: requests go to its instances as they come, and their answers stream back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from typing_extensions import override

from core_grpc.backends.base import DecoupledInstance, LoadedDecoupledModel
from core_grpc.errors import DeadlineExpired, ModelNotReady, QueueFull, Unsupported
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model import Model
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.models.sequence_controls import sequence_call
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.scheduler.sequences import SequenceTracker
from core_grpc.types import Array, InferRequest


class DecoupledModel(Model):
    """See the module's text. A request counts as a row: ``max_streams`` bounds those that are open at once."""

    def __init__(
        self,
        declared: DeclaredModel,
        lifecycle: Lifecycle[ModelState],
        loaded: LoadedDecoupledModel,
        instances: Sequence[DecoupledInstance],
        max_streams: int,
    ) -> None:
        super().__init__(declared, lifecycle)
        config = declared.config.sequence
        self._sequences = SequenceTracker(declared.spec.name, config.max_idle_s) if config else None
        self._loaded = loaded
        self._instances = instances
        self._max_streams = max_streams
        self._open = [0] * len(instances)
        """Streams by instance."""
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        return f"<DecoupledModel {self.spec.name} {self.spec.version} {self.lifecycle!r} {sum(self._open)} streams>"

    @property
    @override
    def is_idle(self) -> bool:
        return not (self.users or any(self._open))

    @override
    async def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Execution:
        raise Unsupported(
            f"model '{self.spec.name}' is decoupled: it answers any number of times; ask it with ModelStreamInfer, Watch, Converse "
            "or generate_stream"
        )

    @override
    async def stream(self, inputs: Mapping[str, Array], request: InferRequest) -> AsyncGenerator[Execution, None]:
        if self._is_closed:
            raise ModelNotReady("the model is being unloaded")
        if sum(self._open) >= self._max_streams:
            raise QueueFull(f"model '{self.spec.name}' has {self._max_streams} requests open: the limit is max_rows")
        if self._sequences is not None and self.declared.sequences:
            call = sequence_call(request.parameters)
            rows = next((array.shape[0] for array in inputs.values()), 1) if self.spec.max_batch_size else 1
            inputs = {**inputs, **self.declared.sequences.controls.filled(call, rows)}
            self._sequences.request(call, time.monotonic())
        index = min(range(len(self._open)), key=self._open.__getitem__)
        self._open[index] += 1
        self._idle.clear()
        try:
            async with aclosing(self._instances[index].stream(inputs, request)) as answers:
                began = time.monotonic()
                async for outputs in _until(answers, request.deadline):
                    now = time.monotonic()
                    yield Execution(outputs, 0.0, now - began, 1)
                    began = time.monotonic()
        finally:
            self._open[index] -= 1
            if not any(self._open):
                self._idle.set()

    @override
    async def drain(self) -> None:
        await self._idle.wait()

    @override
    async def _close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(instance.close() for instance in self._instances))
        self._loaded.close()


async def _until(answers: AsyncIterator[Mapping[str, Array]], deadline: float | None) -> AsyncIterator[Mapping[str, Array]]:
    """The answers that come before the deadline.

    Raises:
        DeadlineExpired: it passed while the next one was awaited.
    """
    loop = asyncio.get_running_loop()
    while True:
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            async with asyncio.timeout_at(None if timeout is None else loop.time() + timeout):
                answer = await anext(answers)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise DeadlineExpired("the deadline passed before the model had given all its answers") from None
        yield answer
