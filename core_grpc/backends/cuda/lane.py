"""One of a pipeline's lanes: one batch at a time from arrays to arrays. See ``pipeline.py`` for how lanes go together."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from core_grpc.backends.cuda.device import CudaDevice
from core_grpc.backends.cuda.driver import CudaError
from core_grpc.backends.cuda.executor import Executor
from core_grpc.backends.cuda.graph_cache import GraphCache
from core_grpc.backends.cuda.lane_buffers import LaneBuffers
from core_grpc.backends.cuda.profiles import Shape, choose_profile
from core_grpc.errors import GatewayError, LimitExceeded
from core_grpc.types import Array

if TYPE_CHECKING:
    import threading

_log = logging.getLogger(__name__)

_INPUT, _OUTPUT = "input ", "output "
"""Before the names in a lane's buffers: an input and an output may be called the same."""


class Shared(Protocol):
    """What lanes share of their pipeline."""

    device: CudaDevice
    executor: Executor
    stream: int
    lock: threading.Lock
    can_record: bool


class _Recorded(NamedTuple):
    graph: int
    output_shapes: Mapping[str, Shape]


class Lane:
    """See the module's text. A ``ModelInstance`` and a ``StagingInstance``: all calls come from one thread."""

    def __init__(self, shared: Shared, graphs: int, on_close: Callable[[], None]) -> None:
        self._shared = shared
        self._on_close = on_close
        self._is_closed = False
        self._driver = shared.device.driver
        self._driver.use()
        self._stream = self._driver.create_stream()
        self._copied, self._computed, self._done = (self._driver.create_event() for _ in range(3))
        self._buffers = LaneBuffers(shared.device)
        self._outputs = _Outputs(self._buffers)
        # Nothing of this lane is under way when it looks for a graph: one that goes is not executing.
        self._graphs: GraphCache[Hashable, _Recorded] = GraphCache(graphs, lambda recorded: self._driver.destroy_graph(recorded.graph))
        self._generation = 0
        self._output_dtypes = {spec.name: spec.datatype.dtype for spec in shared.executor.outputs}
        self._host_inputs = shared.executor.host_inputs

    @property
    def recorded_graphs(self) -> int:
        """CUDA graphs of this lane."""
        return len(self._graphs)

    def staging(self, name: str, nbytes: int) -> Array | None:
        """See ``StagingInstance``: pinned memory, from which the input is copied to the GPU as it lies there."""
        if name in self._host_inputs:
            return None
        with self._shared.device.guarded():
            return self._buffers.pinned(_INPUT + name, nbytes)

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``ModelInstance``.

        Raises:
            InvalidArgument: no profile allows the shapes, or the engine refused the values.
            LimitExceeded: there is no memory for it.
            BackendFailed: the engine or the GPU failed.
        """
        shapes = {name: array.shape for name, array in inputs.items()}
        profile = choose_profile(self._shared.executor.profiles, shapes)
        try:
            with self._shared.device.guarded():
                self._copy_in(inputs)
                with self._shared.lock:
                    output_shapes = self._compute(inputs, shapes, profile)
                return self._copy_out(output_shapes)
        except LimitExceeded:
            # What this batch took already would keep smaller ones from running.
            self._buffers.give_back()
            raise

    def close(self) -> None:
        """See ``ModelInstance``."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._shared.device.fault:
                self._free()
            self._buffers.close()
        finally:
            self._on_close()

    def _copy_in(self, inputs: Mapping[str, Array]) -> None:
        for name, array in inputs.items():
            if name in self._host_inputs or not array.nbytes:
                continue
            key = _INPUT + name
            if not self._buffers.holds(key, array):
                np.copyto(self._buffers.pinned(key, array.nbytes).view(array.dtype).reshape(array.shape), array, casting="no")
            self._driver.copy_in(
                self._buffers.on_device(key, array.nbytes), self._buffers.address_of_pinned(key), array.nbytes, self._stream
            )
        self._driver.record(self._copied, self._stream)

    def _compute(self, inputs: Mapping[str, Array], shapes: Mapping[str, Shape], profile: int) -> Mapping[str, Shape]:
        """Gives the execution to the compute stream; the shapes of its outputs."""
        self._drop_stale_graphs()
        key = (profile, frozenset(shapes.items()))
        recorded = self._graphs.get(key)
        stream = self._shared.stream
        self._driver.wait(stream, self._copied)
        if recorded is not None:
            self._driver.launch(recorded.graph, stream)
            output_shapes = recorded.output_shapes
        else:
            output_shapes = self._run(key, profile, shapes, {name: inputs[name] for name in self._host_inputs if name in inputs})
        self._driver.record(self._computed, stream)
        return output_shapes

    def _run(self, key: Hashable, profile: int, shapes: Mapping[str, Shape], host_values: Mapping[str, Array]) -> Mapping[str, Shape]:
        executor = self._shared.executor
        planned = executor.set_shapes(profile, shapes, host_values)
        known = {name: shape for name, shape in planned.items() if shape is not None}
        addresses = {name: self._buffers.on_device(_INPUT + name, 0) for name in shapes if name not in self._host_inputs}
        for name, shape in known.items():
            addresses[name] = self._buffers.on_device(_OUTPUT + name, math.prod(shape) * self._output_dtypes[name].itemsize)
        executor.set_addresses(addresses)
        self._outputs.shapes = dict(known)
        is_fixed = len(known) == len(planned) and not host_values
        self._drop_stale_graphs()
        if self._shared.can_record and is_fixed and self._graphs.is_worth_recording(key):
            self._record(key, addresses, known)
        else:
            executor.enqueue(self._shared.stream, self._outputs)
        return self._outputs.shapes

    def _record(self, key: Hashable, addresses: Mapping[str, int], output_shapes: Mapping[str, Shape]) -> None:
        """Records the execution as a graph and launches it. An engine that cannot be recorded is run, now and from now on, without."""
        graph = self._recorded_graph()
        if graph is None:
            self._shared.executor.set_addresses(addresses)
            self._shared.executor.enqueue(self._shared.stream, self._outputs)
            self._shared.can_record = False
            return
        self._graphs.put(key, _Recorded(graph, output_shapes))
        self._driver.launch(graph, self._shared.stream)

    def _recorded_graph(self) -> int | None:
        stream = self._shared.stream
        self._driver.begin_capture(stream)
        problem: Exception | None = None
        try:
            self._shared.executor.enqueue(stream, self._outputs)
        except (CudaError, GatewayError) as error:
            problem = error
        try:
            graph = self._driver.end_capture(stream)
        except CudaError as error:
            if error.is_sticky:
                raise
            problem = problem or error
        else:
            if problem is None:
                return graph
            self._driver.destroy_graph(graph)
        _log.warning("an engine cannot be recorded as a CUDA graph, and runs without: %s", problem)
        return None

    def _copy_out(self, output_shapes: Mapping[str, Shape]) -> Mapping[str, Array]:
        self._driver.wait(self._stream, self._computed)
        pinned: dict[str, Array] = {}
        for name, shape in output_shapes.items():
            key, dtype = _OUTPUT + name, self._output_dtypes[name]
            nbytes = math.prod(shape) * dtype.itemsize
            pinned[name] = self._buffers.pinned(key, nbytes).view(dtype).reshape(shape)
            if nbytes:
                self._driver.copy_out(self._buffers.address_of_pinned(key), self._buffers.on_device(key, nbytes), nbytes, self._stream)
        self._driver.record(self._done, self._stream)
        self._driver.synchronize(self._done)
        return {name: pinned[name].copy() for name in self._output_dtypes}

    def _drop_stale_graphs(self) -> None:
        """What was recorded with addresses that are not this lane's any more."""
        if self._generation != self._buffers.generation:
            self._generation = self._buffers.generation
            self._graphs.clear()

    def _free(self) -> None:
        try:
            self._driver.finish()
            self._graphs.clear()
            for event in (self._copied, self._computed, self._done):
                self._driver.destroy_event(event)
            self._driver.destroy_stream(self._stream)
        except CudaError:
            # What cannot be freed goes with the process; the context must be closed all the same.
            _log.warning("a lane's streams could not be freed", exc_info=True)


class _Outputs:
    """``OutputAllocator`` over a lane's buffers."""

    def __init__(self, buffers: LaneBuffers) -> None:
        self._buffers = buffers
        self.shapes: dict[str, Shape] = {}

    def allocate(self, name: str, nbytes: int) -> int:
        """See ``OutputAllocator``."""
        return self._buffers.on_device(_OUTPUT + name, nbytes)

    def set_shape(self, name: str, shape: Shape) -> None:
        """See ``OutputAllocator``."""
        self.shapes[name] = shape
