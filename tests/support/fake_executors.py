"""Executors over ``FakeCuda``: what a pipeline drives in tests. They hold to the protocol's rules and fail where one is broken."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from core_grpc.backends.cuda.executor import OutputAllocator
from core_grpc.backends.cuda.profiles import Profile, Shape
from core_grpc.types import Array, Datatype, TensorSpec
from tests.support.fake_cuda import FakeCuda, FakeCudaMisuseError

FLOAT = np.dtype(np.float32)


class FakeExecutor:
    """Y = 2 X + 1 for X of ``[rows, columns]``, through memory of the context's own, as engines have it."""

    inputs: Sequence[TensorSpec] = (TensorSpec("X", Datatype.FP32, (-1, -1)),)
    outputs: Sequence[TensorSpec] = (TensorSpec("Y", Datatype.FP32, (-1, -1)),)
    host_inputs: frozenset[str] = frozenset()
    can_record = True

    def __init__(self, cuda: FakeCuda, profiles: Sequence[Profile] = (Profile(),)) -> None:
        self.cuda = cuda
        self.profiles = profiles
        self.used_profiles: list[int] = []
        self.enqueued = 0
        self.is_closed = False
        self._entry = threading.Lock()
        self._shape: Shape = ()
        self._addresses: Mapping[str, int] = {}
        self._scratch = np.zeros(0, np.float32)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Fails when another thread is in the context."""
        if not self._entry.acquire(blocking=False):
            raise FakeCudaMisuseError("two threads use one execution context")
        try:
            time.sleep(0)
            yield
        finally:
            self._entry.release()

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], host_values: Mapping[str, Array]) -> Mapping[str, Shape | None]:
        assert not host_values
        with self.alone():
            self.used_profiles.append(profile)
            self._shape, self._addresses = shapes["X"], {}
            return {"Y": self._shape}

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        with self.alone():
            self._addresses = addresses

    def enqueue(self, stream: int, allocator: OutputAllocator) -> None:
        del allocator
        with self.alone():
            if self._addresses.keys() != {"X", "Y"}:
                raise FakeCudaMisuseError(f"enqueue: wanted addresses for X and Y, got {sorted(self._addresses)}")
            self.cuda.calls.append("enqueue")
            self.enqueued += 1
            shape, source, to = self._shape, self._addresses["X"], self._addresses["Y"]

            def first() -> None:
                self._scratch = self.cuda.view(source, shape, FLOAT) * 2

            def second() -> None:
                self.cuda.view(to, shape, FLOAT)[...] = self._scratch + 1

            self.cuda.run(stream, first)
            self.cuda.run(stream, second)

    def close(self) -> None:
        self.is_closed = True


class FakeNonZeroExecutor(FakeExecutor):
    """Y = the values of X that are not zero: how many, only the execution tells. It waits for its inputs, as engines do for this."""

    outputs: Sequence[TensorSpec] = (TensorSpec("Y", Datatype.FP32, (-1,)),)

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], host_values: Mapping[str, Array]) -> Mapping[str, Shape | None]:
        super().set_shapes(profile, shapes, host_values)
        return {"Y": None}

    def enqueue(self, stream: int, allocator: OutputAllocator) -> None:
        with self.alone():
            found: list[Array] = []
            source, shape = self._addresses["X"], self._shape

            def find() -> None:
                values = self.cuda.view(source, shape, FLOAT) if math.prod(shape) else np.zeros(0, np.float32)
                found.append(values[values != 0])

            self.cuda.run(stream, find)
            self._wait_for(stream)
            (values,) = found
            address = allocator.allocate("Y", values.nbytes)
            allocator.set_shape("Y", values.shape)
            self.cuda.run(stream, lambda: self._write(address, values))

    def _wait_for(self, stream: int) -> None:
        event = self.cuda.create_event()
        self.cuda.record(event, stream)
        self.cuda.synchronize(event)
        self.cuda.destroy_event(event)

    def _write(self, address: int, values: Array) -> None:
        if values.size:
            self.cuda.view(address, values.shape, FLOAT)[...] = values


class FakeReshapeExecutor(FakeExecutor):
    """Y = X with the shape that the host input S says."""

    inputs: Sequence[TensorSpec] = (TensorSpec("X", Datatype.FP32, (-1, -1)), TensorSpec("S", Datatype.INT64, (2,)))
    host_inputs = frozenset({"S"})

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], host_values: Mapping[str, Array]) -> Mapping[str, Shape | None]:
        super().set_shapes(profile, {"X": shapes["X"]}, {})
        rows, columns = host_values["S"].tolist()
        return {"Y": (rows, columns)}
