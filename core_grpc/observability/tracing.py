"""Timestamps of sampled requests, written to a file: Triton's trace extension.

Settings and records: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md. The file is set where the
server is started (``server.trace_file``) and nowhere else; without it nothing is traced. A file is one JSON array of records, written
whole: ``<file>.0``, ``<file>.1``, … after each ``log_frequency`` traces, and ``<file>`` with what is left at the end.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core_grpc.errors import InvalidArgument, Unsupported, one_line, quoted

_log = logging.getLogger(__name__)

_MOST_KEPT = 10_000
"""Traces kept in memory; then they are written although nobody asked for that."""
_NS = 1_000_000_000
_LEVELS = ("OFF", "TIMESTAMPS")
_INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The settings, under Triton's names."""

    trace_level: tuple[str, ...] = ("OFF",)
    trace_rate: int = 1000
    """One request of so many is traced."""
    trace_count: int = -1
    """How many more are traced; -1 for no limit."""
    log_frequency: int = 0
    """A file is written after so many traces; 0 writes one at the end."""


_NAMES = tuple(TraceSettings.__dataclass_fields__)
_RANGES = {"trace_rate": (1, _INT_MAX), "trace_count": (-1, _INT_MAX), "log_frequency": (0, _INT_MAX)}


class Tracer:
    """The settings and the traces. Belongs to the event loop; files are written on ``pool``."""

    def __init__(self, file: str, pool: Executor) -> None:
        self.file = file
        self._pool = pool
        self._settings = TraceSettings()
        self._of_model: dict[str, dict[str, Any]] = {}
        """What differs from the global settings."""
        self._seen: dict[str, int] = {}
        """Requests by model that has settings of its own, and of all others under the empty name."""
        self._last_id = 0
        self._files = 0
        self._traces: list[dict[str, Any]] = []
        self._kept = 0
        self._writing: list[Future[None]] = []
        """Files that are not written yet."""
        self.is_on = False
        """Whether any request may be traced: all that a request costs while it is false."""

    def settings(self, model: str = "") -> TraceSettings:
        """What holds for a model, or globally."""
        return replace(self._settings, **self._of_model.get(model, {}))

    def update(self, model: str, changes: Mapping[str, Sequence[str]]) -> TraceSettings:
        """Changes some settings, all or none, and gives what holds then. No value at all takes the global (or the first) one again.

        Raises:
            InvalidArgument: no such setting, or a value that it cannot have.
            Unsupported: the file, or a level that is not offered.
        """
        parsed = {name: _parsed(name, values) if values else None for name, values in changes.items() if _is_known(name)}
        if model:
            of_model = self._of_model.setdefault(model, {})
            of_model.update({name: value for name, value in parsed.items() if value is not None})
            for name in [name for name, value in parsed.items() if value is None]:
                of_model.pop(name, None)
        else:
            first = TraceSettings()
            new: dict[str, Any] = {name: getattr(first, name) if value is None else value for name, value in parsed.items()}
            self._settings = replace(self._settings, **new)
        everybody = [self._settings, *(self.settings(name) for name in self._of_model)]
        self.is_on = bool(self.file) and any("TIMESTAMPS" in item.trace_level for item in everybody)
        return self.settings(model)

    def record(self, model: str, version: str, request_id: str, moments: Mapping[str, float]) -> None:
        """One request, which is traced if it is its turn. ``moments`` are monotonic seconds by Triton's name."""
        settings = self.settings(model)
        if "TIMESTAMPS" not in settings.trace_level or not settings.trace_count:
            return
        counter = model if self._of_model.get(model) else ""
        self._seen[counter] = seen = self._seen.get(counter, 0) + 1
        if seen % settings.trace_rate:
            return
        self._count_down(model, settings)
        self._last_id += 1
        described = {"id": self._last_id, "model_name": model, "model_version": int(version), "request_id": request_id}
        timestamps = [{"name": name, "ns": int(moment * _NS)} for name, moment in moments.items()]
        self._traces += [described, {"id": self._last_id, "timestamps": timestamps}]
        self._kept += 1
        if self._kept >= (settings.log_frequency or _MOST_KEPT):
            writing = self._pool.submit(_write, Path(f"{self.file}.{self._files}"), self._taken())
            self._writing = [writing, *(item for item in self._writing if not item.done())]
            self._files += 1

    def close(self) -> None:
        """Writes what is left; waits until everything is written."""
        if self._traces:
            _write(Path(self.file), self._taken())
        wait(self._writing)

    def _count_down(self, model: str, settings: TraceSettings) -> None:
        if settings.trace_count < 0:
            return
        if "trace_count" in self._of_model.get(model, {}):
            self._of_model[model]["trace_count"] -= 1
        else:
            self._settings = replace(self._settings, trace_count=settings.trace_count - 1)

    def _taken(self) -> list[dict[str, Any]]:
        traces, self._traces, self._kept = self._traces, [], 0
        return traces


def _write(path: Path, traces: list[dict[str, Any]]) -> None:
    try:
        path.write_text(json.dumps(traces, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        _log.error("traces cannot be written to %s: %s", path, one_line(str(error.strerror)))


def _is_known(name: str) -> bool:
    if name in ("trace_file", "trace_mode"):
        raise Unsupported(f"{name} can not be updated through network protocol")
    if name not in _NAMES:
        raise InvalidArgument(f"trace setting {quoted(name)}: wanted one of {', '.join(_NAMES)}")
    return True


def _parsed(name: str, values: Sequence[str]) -> tuple[str, ...] | int:
    if name == "trace_level":
        for value in values:
            if value == "TENSORS":
                raise Unsupported("trace_level: TENSORS is not offered: payloads are never written")
            if value not in _LEVELS:
                raise InvalidArgument(f"trace_level: wanted one of {', '.join(_LEVELS)}, got {quoted(value)}")
        return tuple(values)
    low, high = _RANGES[name]
    try:
        (value,) = values
        number = int(value)
    except ValueError:
        raise InvalidArgument(f"{name}: wanted a whole number, got {quoted(' '.join(values))}") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name}: wanted {low} to {high}, got {number}")
    return number
