"""The engine alone: the executor's own loop, which the pipeline is compared with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from core_grpc.backends.base import Placement
from core_grpc.backends.cuda.device import cuda_device
from core_grpc.backends.cuda.pipeline import LANES, Pipeline
from core_grpc.backends.cuda.profiles import Shape
from core_grpc.backends.onnxruntime.cuda_executor import OrtDevice, OrtExecutor
from core_grpc.backends.onnxruntime.sessions import session_for_stream
from core_grpc.backends.onnxruntime.specs import tensors_of
from core_grpc.types import Array

GPU = Placement("gpu", 0)


class RawLoop(NamedTuple):
    """Batches a second at one batch size, from the barest loop to the pipeline without a scheduler."""

    rows: int
    engine: float
    """Without CUDA graph: enqueued one after the other, waited for once. In rows a second, as all of these."""
    graph: float
    """The recorded graph, launched one after the other, waited for once. 0 where it cannot be recorded."""
    graph_with_copies: float
    """Copy in, launch, copy out, wait: one batch at a time."""
    lane: float
    """``Lane.execute`` from one thread: with the writing into pinned memory and the copy of the answer."""
    lanes: float
    """The same from two threads."""
    batch_s: float
    """Of one ``Lane.execute`` alone, median."""


def ort_pipeline(model_file: Path, graphs: int = 16) -> Pipeline:
    """As the backend makes it."""
    device = cuda_device(0)

    def create(stream: int) -> OrtExecutor:
        session, is_all_on_gpu = session_for_stream(model_file, GPU, stream)
        return OrtExecutor(session, *tensors_of(session, ()), OrtDevice("cuda", 0), device.driver.copy_within, can_record=is_all_on_gpu)

    return Pipeline(device, create, graphs)


class _NoOutputs:
    """No output of unknown shape is expected."""

    def allocate(self, name: str, nbytes: int) -> int:
        """See ``OutputAllocator``."""
        raise RuntimeError(f"{name}: {nbytes} bytes of unknown shape")

    def set_shape(self, name: str, shape: Shape) -> None:
        """See ``OutputAllocator``."""
        raise RuntimeError(f"{name}: {shape}")


class _BareEngine:
    """The pipeline's executor on memory of its own, without lanes."""

    def __init__(self, pipeline: Pipeline, inputs: Mapping[str, Array]) -> None:
        """The pipeline has executed these inputs before: the shapes of the outputs are known."""
        self._driver, self._stream, self._executor = pipeline.device.driver, pipeline.stream, pipeline.executor
        self._pool = pipeline.device.pool
        shapes = self._executor.set_shapes(0, {name: array.shape for name, array in inputs.items()}, {})
        itemsizes = {spec.name: spec.datatype.itemsize for spec in self._executor.outputs}
        self._inputs = {name: array.nbytes for name, array in inputs.items()}
        self._outputs = {name: int(np.prod(shape or ())) * itemsizes[name] for name, shape in shapes.items()}
        sizes = self._inputs | self._outputs
        self._blocks = {name: self._pool.take(nbytes) for name, nbytes in sizes.items()}
        self._pinned = {name: self._driver.allocate_pinned(nbytes) for name, nbytes in sizes.items()}
        self._event = self._driver.create_event()
        self._executor.set_addresses({name: block.address for name, block in self._blocks.items()})
        self._graph = 0
        if pipeline.can_record:
            self._driver.begin_capture(self._stream)
            self.enqueue()
            self._graph = self._driver.end_capture(self._stream)

    def enqueue(self) -> None:
        """One execution, without the graph."""
        self._executor.enqueue(self._stream, _NoOutputs())

    def launch(self) -> None:
        """One execution, by the graph."""
        self._driver.launch(self._graph, self._stream)

    def launch_with_copies(self) -> None:
        """One execution by the graph, with its copies, to its end."""
        for name, nbytes in self._inputs.items():
            self._driver.copy_in(self._blocks[name].address, self._pinned[name], nbytes, self._stream)
        self.launch()
        for name, nbytes in self._outputs.items():
            self._driver.copy_out(self._pinned[name], self._blocks[name].address, nbytes, self._stream)
        self._driver.record(self._event, self._stream)
        self._driver.synchronize(self._event)

    @property
    def has_graph(self) -> bool:
        """Whether the execution could be recorded."""
        return bool(self._graph)

    def close(self) -> None:
        """Frees everything."""
        self._driver.finish()
        if self._graph:
            self._driver.destroy_graph(self._graph)
        self._driver.destroy_event(self._event)
        for address in self._pinned.values():
            self._driver.free_pinned(address)
        for block in self._blocks.values():
            self._pool.give_back(block)


def raw_loop(pipeline: Pipeline, inputs: Mapping[str, Array], seconds: float) -> RawLoop:
    """All loops over one batch, each for so long."""
    rows = int(next(iter(inputs.values())).shape[0])
    lane = pipeline.open_lane()
    for _ in range(5):
        lane.execute(inputs)
    finish = pipeline.device.driver.finish
    bare = _BareEngine(pipeline, inputs)
    engine = _rate(bare.enqueue, finish, rows, seconds)
    graph = _rate(bare.launch, finish, rows, seconds) if bare.has_graph else 0.0
    with_copies = _rate(bare.launch_with_copies, finish, rows, seconds) if bare.has_graph else 0.0
    bare.close()
    took: list[float] = []

    def timed() -> None:
        began = time.perf_counter()
        lane.execute(inputs)
        took.append(time.perf_counter() - began)

    one = _rate(timed, finish, rows, seconds)
    two = _lanes_rate(pipeline, inputs, seconds)
    lane.close()
    return RawLoop(rows, engine, graph, with_copies, one, two, float(np.median(took)))


def _rate(step: Callable[[], None], finish: Callable[[], None], rows: int, seconds: float) -> float:
    """Rows a second. The host waits every 20 steps, or it would give the GPU work for minutes."""
    finish()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            step()
        finish()
        count += 20
    return count * rows / (time.perf_counter() - began)


def _lanes_rate(pipeline: Pipeline, inputs: Mapping[str, Array], seconds: float) -> float:
    rows = int(next(iter(inputs.values())).shape[0])
    counts: list[int] = [0] * LANES
    ready = threading.Barrier(LANES + 1)

    def work(number: int) -> None:
        lane = pipeline.open_lane()
        for _ in range(5):
            lane.execute(inputs)
        ready.wait()
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            lane.execute(inputs)
            counts[number] += 1
        ready.wait()
        lane.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(LANES)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    ready.wait()
    elapsed = time.perf_counter() - began
    for thread in threads:
        thread.join()
    return sum(counts) * rows / elapsed
