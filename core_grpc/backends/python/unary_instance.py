"""An instance of a model that answers each request once: a process, and the thread of the instance that talks to it."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

from core_grpc.backends.base import ModelRequest
from core_grpc.backends.python.faults import Restarts, user_error
from core_grpc.backends.python.framing import Frame, TensorReader, Tensors, packed, receive, send
from core_grpc.backends.python.process import ModelProcess, ProcessOrder
from core_grpc.backends.python.requests import described_request
from core_grpc.errors import BackendFailed, GatewayError, ModelLoadFailed
from core_grpc.types import Array

_LOOK_S = 0.05
"""How often a running execution's callers are looked after."""


class UnaryInstance:
    """See the module's text. All calls come from one thread."""

    def __init__(self, model: str, order: ProcessOrder, timeout_s: float) -> None:
        """Starts the process.

        Raises:
            ModelLoadFailed: see ``ModelProcess``.
        """
        self._model = model
        self._order = order
        self._timeout_s = timeout_s
        self._restarts = Restarts()
        self._process: ModelProcess | None = ModelProcess(order)

    def execute_requests(self, requests: Sequence[ModelRequest]) -> Sequence[Mapping[str, Array] | GatewayError]:
        """See ``RequestInstance``."""
        process = self._process or self._started_again()
        tensors = Tensors()
        described = [described_request(item.inputs, item.request, tensors) for item in requests]
        try:
            process.connection.settimeout(self._timeout_s)
            send(process.connection, packed({"type": "batch", "requests": described}, tensors.buffers))
            frame = self._answer(process, requests)
            results = self._results(frame)
        except TimeoutError:
            self._forget(process)
            raise BackendFailed(f"model '{self._model}': an execution took longer than [python] timeout_s = {self._timeout_s:g}") from None
        except (EOFError, OSError):
            how = process.ending()
            self._forget(process)
            raise BackendFailed(f"model '{self._model}': its process {how} while it ran the request") from None
        except (KeyError, ValueError, TypeError) as error:
            self._forget(process)
            raise BackendFailed(f"model '{self._model}': its process answered something that cannot be read") from error
        self._restarts.worked()
        if isinstance(results, GatewayError):
            raise results
        return results

    def close(self) -> None:
        """Ends the process; idempotent."""
        if self._process:
            self._process.close()
            self._process = None

    def _answer(self, process: ModelProcess, requests: Sequence[ModelRequest]) -> Frame:
        """The process's answer. Tells it meanwhile whose callers have left.

        Raises:
            TimeoutError: it took too long.
            EOFError, OSError: the process is gone.
        """
        ends = time.monotonic() + self._timeout_s
        told: set[int] = set()
        # Not select(): a busy node has descriptors beyond those that it takes.
        poll = select.poll()
        poll.register(process.connection, select.POLLIN)
        while not poll.poll(min(_LOOK_S, self._timeout_s) * 1000):
            if process.has_exited:
                raise EOFError  # A child of the process may still hold the socket.
            if time.monotonic() >= ends:
                raise TimeoutError
            left = {index for index, request in enumerate(requests) if request.is_abandoned} - told
            if left:
                told |= left
                send(process.connection, packed({"type": "cancel", "requests": sorted(left)}))
        process.connection.settimeout(max(ends - time.monotonic(), _LOOK_S))
        return receive(process.connection)

    def _results(self, frame: Frame) -> Sequence[Mapping[str, Array] | GatewayError] | GatewayError:
        header = frame.header
        if header["type"] == "failed":
            return user_error(self._model, header)
        reader = TensorReader(frame.payload)
        return [self._result(result, reader) for result in header["results"]]

    def _result(self, result: Mapping[str, Any], reader: TensorReader) -> Mapping[str, Array] | GatewayError:
        if "error" in result:
            return user_error(self._model, result, "error")
        return reader.tensors(result["tensors"])

    def _started_again(self) -> ModelProcess:
        self._restarts.check(self._model)
        try:
            self._process = ModelProcess(self._order)
        except ModelLoadFailed as error:
            self._restarts.failed()
            raise BackendFailed(f"model '{self._model}': its process could not be started again: {error.message}") from error
        return self._process

    def _forget(self, process: ModelProcess) -> None:
        process.kill()
        self._process = None
        self._restarts.failed()
