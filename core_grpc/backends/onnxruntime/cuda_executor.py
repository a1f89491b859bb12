"""ONNX Runtime's CUDA provider as an ``Executor``: one session with the pipeline's compute stream, bound to its memory.

A session is the execution context here: with a stream of the user's its runs must come one after the other, so each instance has a session
and a copy of the weights.

ONNX Runtime does not say which shapes its outputs will have. For shapes of inputs that come for the first time it allocates the outputs
itself, and what they turn out to be is remembered: from then on they are bound to the pipeline's memory. Where that was wrong, because
the size depends on the values, the engine refuses the memory, and the model's outputs stay unknown for good.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import onnxruntime

from core_grpc.backends.cuda.executor import OutputAllocator
from core_grpc.backends.cuda.profiles import Profile, Shape
from core_grpc.backends.onnxruntime.engine_errors import failure_from_run
from core_grpc.types import Array, Datatype, TensorSpec

_ONNX_TYPES: Mapping[Datatype, int] = {
    # TensorProto.DataType
    Datatype.FP32: 1,
    Datatype.UINT8: 2,
    Datatype.INT8: 3,
    Datatype.UINT16: 4,
    Datatype.INT16: 5,
    Datatype.INT32: 6,
    Datatype.INT64: 7,
    Datatype.BOOL: 9,
    Datatype.FP16: 10,
    Datatype.FP64: 11,
    Datatype.UINT32: 12,
    Datatype.UINT64: 13,
    Datatype.BF16: 16,
}

_REMEMBERED = 1024
"""Shapes of inputs whose outputs' shapes are remembered."""


class OrtDevice(NamedTuple):
    """A device in the engine's words."""

    kind: str = "cuda"
    number: int = 0


class OrtExecutor:
    """See the module's text."""

    host_inputs: frozenset[str] = frozenset()
    profiles: Sequence[Profile] = (Profile(),)

    def __init__(
        self,
        session: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        device: OrtDevice,
        copy_within: Callable[[int, int, int, int], None],
        *,
        can_record: bool,
    ) -> None:
        """
        Args:
            session: an InferenceSession that was made with the compute stream.
            inputs: what it takes; no BYTES.
            outputs: what it gives; no BYTES.
            device: where its tensors lie.
            copy_within: ``Driver.copy_within``.
            can_record: whether all of it runs on the GPU.
        """
        self.inputs = inputs
        self.outputs = outputs
        self.can_record = can_record
        self._session = session
        self._device = device
        self._copy_within = copy_within
        self._types = {spec.name: _ONNX_TYPES[spec.datatype] for spec in (*inputs, *outputs)}
        self._options = onnxruntime.RunOptions()
        # The pipeline waits for what it needs; the engine would wait for the whole stream after each run.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._known: OrderedDict[Hashable, Mapping[str, Shape]] = OrderedDict()
        self._is_data_dependent = False
        self._shapes: Mapping[str, Shape] = {}
        self._output_shapes: Mapping[str, Shape] = {}
        self._addresses: Mapping[str, int] = {}

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], host_values: Mapping[str, Array]) -> Mapping[str, Shape | None]:
        """See ``Executor``."""
        del profile, host_values
        self._shapes = shapes
        key = frozenset(shapes.items())
        self._output_shapes = {} if self._is_data_dependent else self._known.get(key, {})
        if self._output_shapes:
            self._known.move_to_end(key)
        return {spec.name: self._output_shapes.get(spec.name) for spec in self.outputs}

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        """See ``Executor``."""
        self._addresses = addresses

    def enqueue(self, stream: int, allocator: OutputAllocator) -> None:
        """See ``Executor``."""
        bound = self._output_shapes
        try:
            if bound:
                try:
                    self._session.run_with_iobinding(self._binding(bound), self._options)
                except Exception:  # noqa: BLE001 (its exceptions have no common base of their own)
                    # Perhaps an output turned out to have another shape. What fails for another reason fails again.
                    self._is_data_dependent = self._run_unknown(stream, allocator) != bound
                    self._known.clear()
            else:
                self._remember(self._run_unknown(stream, allocator))
        except Exception as error:  # noqa: BLE001 (as above)
            raise failure_from_run(error) from None

    def close(self) -> None:
        """See ``Executor``."""
        self._session = None

    def _binding(self, output_shapes: Mapping[str, Shape]) -> Any:
        """Inputs and outputs at their addresses; outputs without a shape wherever the engine likes on the device."""
        binding = self._session.io_binding()
        kind, number = self._device
        for name, shape in self._shapes.items():
            binding.bind_input(name, kind, number, self._types[name], shape, self._addresses[name])
        for spec in self.outputs:
            name = spec.name
            if output_shapes:
                binding.bind_output(name, kind, number, self._types[name], output_shapes[name], self._addresses[name])
            else:
                binding.bind_output(name, kind, number)
        return binding

    def _run_unknown(self, stream: int, allocator: OutputAllocator) -> Mapping[str, Shape]:
        """Runs with outputs of the engine's own, which are copied; their shapes."""
        binding = self._binding({})
        self._session.run_with_iobinding(binding, self._options)
        found: dict[str, Shape] = {}
        for spec, value in zip(self.outputs, binding.get_outputs(), strict=True):
            shape = found[spec.name] = tuple(value.shape())
            nbytes = value.tensor_size_in_bytes()
            address = allocator.allocate(spec.name, nbytes)
            allocator.set_shape(spec.name, shape)
            if nbytes:
                # The engine's memory goes back to its arena afterwards, whose next user is behind this copy in the stream.
                self._copy_within(address, value.data_ptr(), nbytes, stream)
        return found

    def _remember(self, output_shapes: Mapping[str, Shape]) -> None:
        self._known[frozenset(self._shapes.items())] = output_shapes
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
