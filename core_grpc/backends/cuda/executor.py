"""What an engine must do to be driven by the pipeline: one execution context, as a protocol.

The pipeline calls, for each batch and from one thread at a time (not always the same one)::

    shapes = executor.set_shapes(profile, input shapes, values of host inputs)
    executor.set_addresses(addresses of the inputs and of the outputs whose shape is known)
    executor.enqueue(stream, allocator)

Between two ``enqueue`` nothing is awaited: the work of the batch before may still be under way, in the same stream. The addresses stay good
until the work that was given is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from core_grpc.backends.cuda.profiles import Profile, Shape
from core_grpc.types import Array, TensorSpec


class OutputAllocator(Protocol):
    """Memory for outputs whose shape only the execution tells."""

    def allocate(self, name: str, nbytes: int) -> int:
        """The address of at least ``nbytes`` on the GPU, for this output of the batch that is being enqueued; an earlier address for it is
        not used any more.

        Raises:
            LimitExceeded: there is no room.
        """
        ...

    def set_shape(self, name: str, shape: Shape) -> None:
        """The shape that the output turned out to have."""
        ...


class Executor(Protocol):
    """One execution context. Only the pipeline that it was made for calls it, with its GPU in use on the thread."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """What it takes. BYTES is none of the datatypes."""
        ...

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """What it gives."""
        ...

    @property
    def host_inputs(self) -> frozenset[str]:
        """Inputs whose values it reads on the host when shapes are set (shape tensors). They are not copied to the GPU."""
        ...

    @property
    def profiles(self) -> Sequence[Profile]:
        """Its optimization profiles, at least one; one without ranges where it takes any shape."""
        ...

    @property
    def can_record(self) -> bool:
        """Whether ``enqueue`` may be recorded as a CUDA graph and launched again later, after other shapes were set and run in between.
        Not asked for batches with an output of unknown shape or with host inputs: these are never recorded."""
        ...

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], host_values: Mapping[str, Array]) -> Mapping[str, Shape | None]:
        """Prepares for inputs of these shapes (with the batch dimension), under the profile of that place.

        Returns:
            The shape of each output; None where only the execution tells.

        Raises:
            InvalidArgument: the engine refuses the shapes or values.
        """
        ...

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        """Where the inputs of the next execution lie on the GPU, and where its outputs go whose shapes are known."""
        ...

    def enqueue(self, stream: int, allocator: OutputAllocator) -> None:
        """Gives the execution to the stream and returns without waiting for it, save where an output's shape is unknown: when this returns,
        ``allocator`` was told these, and the content is there in the stream's order.

        Raises:
            BackendFailed, InvalidArgument: the engine failed or refused the values.
        """
        ...

    def close(self) -> None:
        """Frees the context, after all its work is done; idempotent."""
        ...
