"""Batches through one execution context, the copies of the next under the execution of this one.

A pipeline has two lanes, and each lane a thread, a copy stream and buffers of its own; there is one compute stream. A batch goes::

    lane's thread    rows → pinned memory                              wait ── pinned memory → arrays of the answer
    lane's stream       └─ copy in ─┐                        ┌─ copy out ─┘
    compute stream                (copied)─ execute ─(computed)

While one lane's batch executes, the other's is written and copied in: two batches are under way and never three, because a lane takes no
batch before its last one is out (depth one). Executions follow each other in the compute stream, so the context's own memory is used by
one at a time.

Invariants (tests/unit/core_grpc/backends/cuda/test_pipeline.py, over a fake driver that does nothing before it has to):

* one thread at a time uses the context;
* an execution begins after its inputs are there, a copy out begins after the execution, and the host reads after the copy out;
* nothing is written while a copy or an execution may still read it;
* answers are arrays of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from core_grpc.backends.cuda.device import CudaDevice
from core_grpc.backends.cuda.executor import Executor
from core_grpc.backends.cuda.lane import Lane

LANES = 2
GRAPHS = 16
"""CUDA graphs of one lane, where nothing else is said."""


class Pipeline:
    """See the module's text."""

    def __init__(self, device: CudaDevice, create: Callable[[int], Executor], graphs: int = GRAPHS) -> None:
        """``create`` makes the executor for the compute stream that it is given, on this thread. ``graphs`` of 0 records none.

        Raises:
            BackendFailed: the GPU fails, or has failed.
            whatever ``create`` raises; nothing is left then.
        """
        self.device = device
        self._graphs = graphs
        self.lock = threading.Lock()
        """Held while the context is used."""
        self.can_record = graphs > 0
        self._open_lanes = 0
        self._is_closed = False
        with device.guarded():
            device.driver.use()
            self.stream = device.driver.create_stream()
            """In which everything executes."""
            try:
                self.executor = create(self.stream)
            except BaseException:
                device.driver.destroy_stream(self.stream)
                raise
        self.can_record = self.can_record and self.executor.can_record

    def __repr__(self) -> str:
        return f"<Pipeline on {self.device!r}: {self._open_lanes} lanes open>"

    def open_lane(self) -> Lane:
        """One of the ``LANES``; to be called on the thread that uses it."""
        with self.device.guarded():
            lane = Lane(self, self._graphs, self._close_lane)
        with self.lock:
            self._open_lanes += 1
        return lane

    def close(self) -> None:
        """Frees the context where no lane is open; otherwise the last lane does. Idempotent."""
        with self.lock:
            if not self._open_lanes:
                self._free()

    def _close_lane(self) -> None:
        with self.lock:
            self._open_lanes -= 1
            if not self._open_lanes:
                self._free()

    def _free(self) -> None:
        """The context, and what lanes gave back to the pool: another model may need other sizes."""
        if self._is_closed:
            return
        self._is_closed = True
        self.executor.close()
        if not self.device.fault:
            self.device.driver.use()
            self.device.driver.destroy_stream(self.stream)
            self.device.pool.trim()
