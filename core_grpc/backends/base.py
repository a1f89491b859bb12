"""What a backend is: the contract between the models and the code that runs them.

Load and run are two objects. ``Backend.load`` reads a file and says what the model takes and gives; the ``LoadedModel`` makes
instances; a ``ModelInstance`` executes. Everything here is synchronous and blocking: ``instance_worker.py`` gives each instance a
thread of its own, on which the instance is created, used and closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from core_grpc.types import Array, TensorSpec


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


class ModelInstance(Protocol):
    """One executable copy of a model. All calls come from one thread."""

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Runs once and blocks until it is done.

        Every array has the full shape of its spec, the batch dimension first where the model has one. The returned arrays
        belong to the caller (they are not overwritten by the next call) and are C-contiguous, with the dtypes of the specs.

        Raises:
            BackendFailed: the engine failed; the text is fit for the caller.
            InvalidArgument: the engine refused the values (an index outside its table, a shape outside its profiles).
        """
        ...

    def close(self) -> None:
        """Frees everything; idempotent."""
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

    def create_instance(self) -> ModelInstance:
        """Makes an instance; called on the instance's own thread."""
        ...

    def close(self) -> None:
        """Frees what the instances shared, after they are closed; idempotent."""
        ...


class Backend(Protocol):
    """The code that runs one kind of model."""

    platform: str
    """Triton's word for the kind of model."""

    def load(self, source: ModelSource) -> LoadedModel:
        """Reads a model version; called off the event loop.

        Raises:
            ModelLoadFailed: the file is missing, broken, or not for this backend; the text says which and what to do.
        """
        ...
