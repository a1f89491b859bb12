"""A fake of CUDA for machines without a GPU: ``Driver`` over host memory, which does nothing before it has to.

Work that a stream is given waits until somebody synchronises with something behind it, and then only what this depends on is done. So a
missing wait, a read before the copy, or memory that is written too early shows as wrong values, every time. What CUDA would answer with
an error, or not at all, is a ``FakeCudaMisuseError`` here: memory that is not allocated or not pinned, a thread without its GPU, a freed
event, waiting while recording.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from core_grpc.backends.cuda.driver import CudaError

POISON = 0xA5
"""What fresh memory holds."""

Operation: TypeAlias = Callable[[], None]


class FakeCudaMisuseError(AssertionError):
    """A rule of CUDA was broken."""


@dataclass
class _Stream:
    pending: list[Operation] = field(default_factory=list)
    done: int = 0
    capture: list[Operation] | None = None

    @property
    def given(self) -> int:
        return self.done + len(self.pending)


class FakeCuda:
    """See the module's text."""

    def __init__(self, device_bytes: int = 1 << 30) -> None:
        self.device_bytes = device_bytes
        self.device: dict[int, Any] = {}
        """What is allocated on the GPU, by address."""
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, _Stream] = {}
        self.events: dict[int, tuple[int, int]] = {}
        """By event: the stream, and how much of it was given when it was recorded."""
        self.graphs: dict[int, list[Operation]] = {}
        self.calls: list[str] = []
        self.refuses_capture = False
        self._failures: dict[str, int] = {}
        self._sticky = 0
        self._numbers = itertools.count(1)
        self._threads: set[int] = set()
        self._lock = threading.RLock()

    def fail_next(self, call: str, code: int) -> None:
        """The next call of that name answers with the error."""
        self._failures[call] = code

    def run(self, stream: int, work: Operation) -> None:
        """A kernel, for the executors of tests."""
        self._begin("run")
        self._give(stream, work)

    def use(self) -> None:
        self._threads.add(threading.get_ident())
        self._begin("use")

    def allocate(self, nbytes: int) -> int:
        self._begin("allocate")
        if sum(map(len, self.device.values())) + nbytes > self.device_bytes:
            raise CudaError("cudaMalloc", 2, "cudaErrorMemoryAllocation")
        return self._memory(self.device, nbytes)

    def free(self, address: int) -> None:
        self._begin("free")
        self.finish()
        del self.device[address]

    def allocate_pinned(self, nbytes: int) -> int:
        self._begin("allocate_pinned")
        return self._memory(self.pinned, nbytes)

    def free_pinned(self, address: int) -> None:
        self._begin("free_pinned")
        self.finish()
        del self.pinned[address]

    def create_stream(self) -> int:
        self._begin("create_stream")
        number = next(self._numbers)
        self.streams[number] = _Stream()
        return number

    def destroy_stream(self, stream: int) -> None:
        self._begin("destroy_stream")
        del self.streams[stream]

    def create_event(self) -> int:
        self._begin("create_event")
        number = next(self._numbers)
        self.events[number] = (0, 0)
        return number

    def destroy_event(self, event: int) -> None:
        self._begin("destroy_event")
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        self._begin("record")
        self._known(self.events, event)
        self.events[event] = (stream, self.streams[stream].given)

    def wait(self, stream: int, event: int) -> None:
        self._begin("wait")
        other, until = self._known(self.events, event)
        self._give(stream, lambda: self._reach(other, until))

    def synchronize(self, event: int) -> None:
        self._begin("synchronize")
        self._refuse_while_recording()
        stream, until = self._known(self.events, event)
        with self._lock:
            self._reach(stream, until)

    def copy_in(self, device: int, pinned: int, nbytes: int, stream: int) -> None:
        self._begin("copy_in")
        self._copy(self.device, device, self.pinned, pinned, nbytes, stream)

    def copy_out(self, pinned: int, device: int, nbytes: int, stream: int) -> None:
        self._begin("copy_out")
        self._copy(self.pinned, pinned, self.device, device, nbytes, stream)

    def copy_within(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._begin("copy_within")
        self._copy(self.device, to, self.device, source, nbytes, stream)

    def begin_capture(self, stream: int) -> None:
        self._begin("begin_capture")
        if self.streams[stream].capture is not None:
            raise FakeCudaMisuseError("the stream is recording already")
        self.streams[stream].capture = []

    def end_capture(self, stream: int) -> int:
        self._begin("end_capture")
        recorded, self.streams[stream].capture = self.streams[stream].capture, None
        if recorded is None:
            raise FakeCudaMisuseError("the stream is not recording")
        if self.refuses_capture:
            raise CudaError("cudaStreamEndCapture", 901, "cudaErrorStreamCaptureInvalidated")
        number = next(self._numbers)
        self.graphs[number] = recorded
        return number

    def launch(self, graph: int, stream: int) -> None:
        self._begin("launch")
        for operation in self._known(self.graphs, graph):
            self._give(stream, operation)

    def destroy_graph(self, graph: int) -> None:
        self._begin("destroy_graph")
        del self.graphs[graph]

    def finish(self) -> None:
        self._begin("finish")
        self._refuse_while_recording()
        with self._lock:
            for number, stream in self.streams.items():
                self._reach(number, stream.given)

    def view(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory on the GPU as an array, for kernels."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(self._range(self.device, address, nbytes), dtype).reshape(shape)

    @property
    def is_clean(self) -> bool:
        """Whether everything was freed."""
        return not (self.device or self.pinned or self.streams or self.events or self.graphs)

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        if threading.get_ident() not in self._threads:
            raise FakeCudaMisuseError(f"{call}: this thread did not say which GPU it uses")
        if code := self._failures.pop(call, self._sticky):
            error = CudaError(call, code, f"cudaError{code}")
            if error.is_sticky:
                self._sticky = code
            raise error

    def _memory(self, where: dict[int, Any], nbytes: int) -> int:
        buffer = (ctypes.c_uint8 * max(nbytes, 1))()
        ctypes.memset(buffer, POISON, nbytes)
        where[address := ctypes.addressof(buffer)] = buffer
        return address

    def _known(self, things: dict[int, Any], number: int) -> Any:
        if number not in things:
            raise FakeCudaMisuseError(f"{number} is not there, or not any more")
        return things[number]

    def _range(self, where: dict[int, Any], address: int, nbytes: int) -> Any:
        for start, buffer in list(where.items()):
            if start <= address and address + nbytes <= start + len(buffer):
                return (ctypes.c_uint8 * nbytes).from_address(address)
        raise FakeCudaMisuseError(f"{nbytes} bytes at {address} are not {'device' if where is self.device else 'pinned'} memory")

    def _copy(self, into: dict[int, Any], to: int, out_of: dict[int, Any], source: int, nbytes: int, stream: int) -> None:  # noqa: PLR0917
        self._range(into, to, nbytes)
        self._range(out_of, source, nbytes)

        def copy() -> None:
            ctypes.memmove(self._range(into, to, nbytes), self._range(out_of, source, nbytes), nbytes)

        self._give(stream, copy)

    def _give(self, stream: int, operation: Operation) -> None:
        with self._lock:
            queue = self._known(self.streams, stream)
            (queue.pending if queue.capture is None else queue.capture).append(operation)

    def _reach(self, stream: int, until: int) -> None:
        """Does what the stream was given up to that place."""
        queue = self._known(self.streams, stream) if until else None
        while queue is not None and queue.done < until:
            operation = queue.pending.pop(0)
            queue.done += 1
            operation()

    def _refuse_while_recording(self) -> None:
        if any(stream.capture is not None for stream in self.streams.values()):
            raise CudaError("cudaEventSynchronize", 900, "cudaErrorStreamCaptureUnsupported")
