"""``CudaDriver`` that stamps what happens on the GPU: when each copy and each execution began and ended, by CUDA's own events."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from core_grpc.backends.cuda.driver import CudaDriver


class Span(NamedTuple):
    """Something that a stream did."""

    kind: str
    """``copy in``, ``execute``, ``copy out``"""
    stream: int
    began_ms: float
    ended_ms: float
    """Since ``begin``."""


class TimedDriver(CudaDriver):
    """See the module's text. Costs a few microseconds for each stamp."""

    def __init__(self, device_id: int) -> None:
        super().__init__(device_id)
        self._base: Any = None
        self._open: dict[int, tuple[str, Any]] = {}
        self._spans: list[tuple[str, int, Any, Any]] = []
        self._copy_streams: set[int] = set()

    def begin(self) -> None:
        """From now on everything is stamped."""
        self._spans.clear()
        self._open.clear()
        self._base = self._call(self._cuda.cudaEventCreate)
        self._call(self._cuda.cudaEventRecord, self._base, 0)

    def end(self) -> list[Span]:
        """What was done since ``begin``, which is over."""
        self.finish()
        base, self._base = self._base, None
        return [Span(kind, stream, self._since(base, began), self._since(base, ended)) for kind, stream, began, ended in self._spans]

    @override
    def copy_in(self, device: int, pinned: int, nbytes: int, stream: int) -> None:
        self._copy_streams.add(stream)
        self._start("copy in", stream)
        super().copy_in(device, pinned, nbytes, stream)

    @override
    def copy_out(self, pinned: int, device: int, nbytes: int, stream: int) -> None:
        self._start("copy out", stream)
        super().copy_out(pinned, device, nbytes, stream)

    @override
    def wait(self, stream: int, event: int) -> None:
        super().wait(stream, event)
        if stream not in self._copy_streams:
            self._start("execute", stream)

    @override
    def record(self, event: int, stream: int) -> None:
        if started := self._open.pop(stream, None):
            self._spans.append((started[0], stream, started[1], self._stamp(stream)))
        super().record(event, stream)

    def _start(self, kind: str, stream: int) -> None:
        if self._base is not None and stream not in self._open:
            self._open[stream] = (kind, self._stamp(stream))

    def _stamp(self, stream: int) -> Any:
        event = self._call(self._cuda.cudaEventCreate)
        self._call(self._cuda.cudaEventRecord, event, self._objects[stream])
        return event

    def _since(self, base: Any, event: Any) -> float:
        return float(self._call(self._cuda.cudaEventElapsedTime, base, event))


def covered_ms(spans: list[Span]) -> float:
    """How long at least one of them was under way."""
    covered, until = 0.0, -np.inf
    for span in sorted(spans, key=lambda item: item.began_ms):
        covered += max(span.ended_ms - max(span.began_ms, until), 0.0)
        until = max(until, span.ended_ms)
    return covered


def overlap_ms(copies: list[Span], executions: list[Span]) -> float:
    """How much of the copies happened while something executed."""
    return covered_ms(copies) + covered_ms(executions) - covered_ms([*copies, *executions])
