"""A model version that answers, whatever runs it: what the data plane and the registry know of it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from core_grpc.backends import BACKENDS
from core_grpc.errors import Unsupported
from core_grpc.lifecycle import Lifecycle, ModelState
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.models.response_cache import ModelCache, ResponseCache
from core_grpc.models.statistics import ModelStatistics
from core_grpc.models.turns import Turns
from core_grpc.pipelines.step import PIPELINE
from core_grpc.scheduler.dispatcher import Execution, QueueDepth
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec

if TYPE_CHECKING:
    from core_grpc.processing.images import ImagePreprocessing

__all__ = ["Execution", "Model"]

_EMPTY_QUEUE = QueueDepth(0, 0, 0)


class Model(ABC):
    """See the module's text. Belongs to the event loop."""

    is_resident = True
    """Whether it is loaded, and not only known."""

    def __init__(self, declared: DeclaredModel, lifecycle: Lifecycle[ModelState]) -> None:
        self.declared = declared
        self.spec: ModelSpec = declared.spec
        self.lifecycle = lifecycle
        self.preprocessing: Mapping[str, ImagePreprocessing] = declared.preprocessing
        """By the name of the input that takes encoded images."""
        self.turns = Turns() if declared.preprocessing and declared.sequences else None
        """Where the images of a sequence are decoded one after the other: by ``repr`` of its id."""
        self.output_datatypes: Mapping[str, Datatype] = {output.name: output.datatype for output in declared.spec.outputs}
        """By output name, in the model's order."""
        self.config: ModelConfig = declared.config
        self.backend: str = declared.backend
        """A name in ``BACKENDS``, or ``PIPELINE``."""
        usual = "" if declared.backend == PIPELINE else BACKENDS[declared.backend].model_file
        self.model_file = declared.config.model_file or usual
        """The file in the version's directory that it was read from; empty for a backend without one."""
        self.statistics = ModelStatistics()
        self.users = 0
        """Requests that have this model in hand, from the moment they found it; ``release`` is called for each in the end."""
        self._unused: asyncio.Event | None = None
        self._cache: ModelCache | None = None
        self.last_used = time.monotonic()
        """When a request last found it, or it was loaded."""
        self.device_fault = ""
        """Why the device that it runs on cannot be used any more, by any model of this process; empty while it can."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody would miss it now: no request has it in hand, and it keeps nothing for one that is to come."""
        return not self.users

    @property
    def queue_depth(self) -> QueueDepth:
        """What waits for an instance of this model; nothing where requests do not queue."""
        return _EMPTY_QUEUE

    def release(self) -> None:
        """One of ``users`` is done with it."""
        self.users -= 1
        if not self.users and self._unused:
            self._unused.set()

    async def unused(self) -> None:
        """Returns once nobody has it in hand. For a model that nobody finds any more."""
        self._unused = asyncio.Event()
        if self.users:
            await self._unused.wait()

    @abstractmethod
    def infer(self, inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Coroutine[Any, Any, Execution]:
        """Runs one request, with others in a batch where the model has a batch dimension.

        Args:
            inputs: arrays that fit ``spec``, which nobody changes until this returns.
            rows: their first dimension; ignored for a model without a batch dimension.
            request: what they came with; its deadline is kept, and its parameter ``timeout`` bounds the wait (microseconds; 0 for none).

        Raises:
            QueueFull, DeadlineExpired, ModelNotReady: it was not run.
            BackendFailed, InvalidArgument: the engine failed or refused the values.
            Unsupported: the model is decoupled.
        """

    def check_ready(self) -> None:  # noqa: B027 (most models need nothing but themselves)
        """Whether it can answer, beyond its own state.

        Raises:
            ModelNotReady: a model that it needs does not answer now; the text names it.
        """

    def device_failed(self, reason: str) -> None:
        """Takes it out of service: the device that it runs on has failed for good."""
        if self.device_fault:
            return
        self.device_fault = reason
        if self.lifecycle.state is ModelState.READY:
            self.lifecycle.to(ModelState.UNAVAILABLE, reason)
        elif self.lifecycle.state is ModelState.LOADING:
            # It becomes READY first, because its load has gone well, and then this.
            loop = asyncio.get_running_loop()
            self.lifecycle.watch(lambda state: _when_ready(self.lifecycle, state, reason, loop))

    def stream(self, inputs: Mapping[str, Array], request: InferRequest) -> AsyncGenerator[Execution, None]:  # noqa: ARG002
        """The answers of a decoupled model to one request as they are made.

        Closing the generator, or cancelling the task that waits for it, ends the request's work.

        Args:
            inputs: arrays that fit ``spec``, which nobody changes until this ends.
            request: what they came with; its deadline is kept.

        Raises:
            QueueFull, DeadlineExpired, ModelNotReady, BackendFailed, InvalidArgument: as ``infer``; answers given before stay given.
            Unsupported: the model is not decoupled.
        """
        raise Unsupported(f"model '{self.spec.name}' answers each request once: it does not stream")

    @abstractmethod
    async def drain(self) -> None:
        """Waits until nothing is pending or executing."""

    def use_cache(self, cache: ResponseCache) -> None:
        """From now on ``infer`` asks the response cache first."""
        # Python code sees the request's parameters; other engines see arrays only.
        self._cache = cache.for_model(self.infer, self.statistics, parameters_matter=self.backend == "python")
        # Decided here, once: a model without a cache pays nothing for those that have one.
        self.infer = self._cache.infer  # type: ignore[method-assign]

    async def close(self) -> None:
        """Refuses new work, fails what is pending, finishes what is executing, and frees the engine; idempotent."""
        if self._cache:
            self._cache.close()
        if self.lifecycle.state is ModelState.READY:
            self.lifecycle.to(ModelState.UNLOADING)
        await self._close()

    @abstractmethod
    async def _close(self) -> None:
        """As ``close``, for what runs the model."""


def _when_ready(lifecycle: Lifecycle[ModelState], state: ModelState, reason: str, loop: asyncio.AbstractEventLoop) -> None:
    if state is ModelState.READY:
        # Not within the step: its other watchers have not heard of it yet.
        loop.call_soon(_end_of_ready, lifecycle, reason)


def _end_of_ready(lifecycle: Lifecycle[ModelState], reason: str) -> None:
    if lifecycle.state is ModelState.READY:
        lifecycle.to(ModelState.UNAVAILABLE, reason)
