"""What a backend is: the contract between the models and the code that runs them.

Load and run are two objects. ``Backend.load`` reads a file and says what the model takes and gives; the ``LoadedModel`` makes
instances; a ``ModelInstance`` executes. Everything here is synchronous and blocking: ``instance_worker.py`` gives each instance a
thread of its own, on which the instance is created, used and closed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from core_grpc.errors import GatewayError
from core_grpc.types import Array, InferRequest, TensorSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instance runs."""

    kind: Literal["cpu", "gpu"] = "cpu"
    device_id: int = 0
    """The GPU's number; 0 on the CPU."""
    cores: tuple[int, ...] = ()
    """The logical processors that its threads may run on; empty for all."""

    @property
    def device(self) -> str:
        """``cpu``, ``gpu:0``, …"""
        return "cpu" if self.kind == "cpu" else f"gpu:{self.device_id}"


ON_CPU = Placement()


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that a backend can use on this machine."""

    count: int = 0
    absence: str = ""
    """Why there is none, as the end of "because …"."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What the scheduler wants to know of a backend's engine."""

    shares_copy: bool = False
    """Whether instances on one device share one copy of the model, and the engine runs several of them at once."""
    computes_on_device: bool = False
    """Whether an execution keeps its device busy, in this process: it then takes one of the device's slots."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model version on disk, and what ``model.toml`` says that concerns its backend."""

    name: str
    version: str
    directory: Path
    """The version's directory, resolved; nothing outside the model's own directory may be read."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The table of model.toml that is named after the backend (``[onnxruntime]``, ``[identity]``)."""
    declared_inputs: tuple[TensorSpec, ...] = ()
    """Inputs declared in model.toml, for backends that cannot read them from the model."""
    declared_outputs: tuple[TensorSpec, ...] = ()
    """Outputs declared in model.toml."""
    max_batch_size: int | None = None
    """As model.toml says; None where it says nothing."""
    placements: tuple[Placement, ...] = (ON_CPU,)
    """Where its instances will run, each place once."""
    model_file: str = ""
    """The file in the version's directory; empty for the backend's usual one."""
    gpu_pool_bytes: int = 0
    """How much memory the buffers of pipelines may take on each GPU; 0 for no limit but the GPU's."""


class ModelInstance(Protocol):
    """One executable copy of a model. All calls come from one thread."""

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Runs once and blocks until it is done.

        Every array has the full shape of its spec, the batch dimension first where the model has one, and is good until this returns.
        The returned arrays belong to the caller (they are not overwritten by the next call) and are C-contiguous, with the dtypes of the
        specs. One may be an input, or a view of one.

        Raises:
            BackendFailed: the engine failed; the text is fit for the caller.
            InvalidArgument: the engine refused the values (an index outside its table, a shape outside its profiles).
        """
        ...

    def close(self) -> None:
        """Frees everything; idempotent."""
        ...


@runtime_checkable
class StagingInstance(Protocol):
    """A ``ModelInstance`` that has memory for its inputs, from which it takes them without another copy. Same thread."""

    def staging(self, name: str, nbytes: int) -> Array | None:
        """Memory to write the whole of an input's batch into, uint8 ``[nbytes]``, good until ``execute`` was called; it holds what was left
        there. None where the input has none.

        Raises:
            LimitExceeded, BackendFailed: there is no memory for it.
        """
        ...


class ModelRequest(Protocol):
    """One request of a batch, for an instance that wants more than stacked arrays."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Its own rows; nobody changes them."""
        ...

    @property
    def request(self) -> InferRequest | None:
        """Id, parameters and deadline; None for a warm-up."""
        ...

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the answer any more. May be read from any thread."""
        ...


@runtime_checkable
class RequestInstance(Protocol):
    """An instance that is handed the requests of a batch one beside the other (user code in Python), instead of stacked arrays."""

    def execute_requests(self, requests: Sequence[ModelRequest]) -> Sequence[Mapping[str, Array] | GatewayError]:
        """Runs once; for each request, in order, its outputs (as ``ModelInstance.execute`` gives them) or why it failed.

        Raises:
            as ``ModelInstance.execute``: then no request of the batch has an answer, and each is tried again alone.
        """
        ...

    def close(self) -> None:
        """Frees everything; idempotent."""
        ...


class DecoupledInstance(Protocol):
    """An instance that answers a request any number of times, and many requests at once. Belongs to the event loop."""

    def stream(self, inputs: Mapping[str, Array], request: InferRequest) -> AsyncGenerator[Mapping[str, Array], None]:
        """The answers, each as ``ModelInstance.execute`` gives it, as they are made.

        Who reads slowly holds back this one request: what is made ahead of the reader is bounded. Closing the generator, or cancelling
        the task that waits for it, ends the request's work at once.

        Raises:
            BackendFailed, InvalidArgument, …: the request failed; answers given before stay given.
        """
        ...

    async def close(self) -> None:
        """Fails what still streams, and frees everything; idempotent."""
        ...


@runtime_checkable
class LoadedDecoupledModel(Protocol):
    """A loaded model that answers any number of times. Has no batch dimension of the scheduler's: requests are never joined."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What it takes, in the model's order."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in the model's order."""
        ...

    async def start_instance(self, placement: Placement = ON_CPU, /) -> DecoupledInstance:
        """Starts an instance in one of the source's placements, on the event loop.

        Raises:
            ModelLoadFailed: it cannot be started; the text says why.
        """
        ...

    def close(self) -> None:
        """Frees what the instances shared, after they are closed; idempotent."""
        ...


class LoadedRequestModel(Protocol):
    """As ``LoadedModel``, for a model whose instances are handed requests."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What it takes, in the model's order."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in the model's order."""
        ...

    def create_instance(self, placement: Placement = ON_CPU, /) -> RequestInstance:
        """Makes an instance in one of the source's placements; called on the instance's own thread, which is pinned already."""
        ...

    def close(self) -> None:
        """Frees what the instances shared, after they are closed; idempotent."""
        ...


class LoadedModel(Protocol):
    """A model that was read and understood, shared by its instances."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What it takes, in the model's order."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in the model's order."""
        ...

    def create_instance(self, placement: Placement = ON_CPU, /) -> ModelInstance:
        """Makes an instance in one of the source's placements; called on the instance's own thread, which is pinned already."""
        ...

    def close(self) -> None:
        """Frees what the instances shared, after they are closed; idempotent."""
        ...


@runtime_checkable
class LoadedDeviceModel(Protocol):
    """A ``LoadedModel`` that runs on a device of its own, and overlaps batches there."""

    def lanes(self, placement: Placement, /) -> int:
        """How many batches of one instance in this place are under way at once. ``create_instance`` is called as often for it, each time on
        another thread, before it is called for the next instance."""
        ...

    def watch_device(self, watcher: Callable[[str], None], /) -> None:
        """Calls ``watcher`` with the reason, on any thread, when a device that it runs on has failed for good; at once if one has already.
        Ends with ``close``."""
        ...


AnyLoadedModel: TypeAlias = LoadedModel | LoadedRequestModel | LoadedDecoupledModel


class Backend(Protocol):
    """The code that runs one kind of model."""

    platform: str
    """Triton's word for the kind of model."""
    traits: EngineTraits

    def gpus(self) -> Gpus:
        """The GPUs that it can use here."""
        ...

    def load(self, source: ModelSource) -> AnyLoadedModel:
        """Reads a model version; called off the event loop.

        Raises:
            ModelLoadFailed: the file is missing, broken, or not for this backend; the text says which and what to do.
        """
        ...
