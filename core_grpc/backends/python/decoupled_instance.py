"""An instance of a decoupled model: a process that answers many requests at once, each any number of times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from core_grpc.backends.python.decoupled_child import READ_AHEAD_BYTES, receive_async
from core_grpc.backends.python.faults import Restarts, user_error
from core_grpc.backends.python.framing import Frame, TensorReader, Tensors, packed
from core_grpc.backends.python.process import ModelProcess, ProcessOrder
from core_grpc.backends.python.requests import described_request
from core_grpc.errors import BackendFailed, GatewayError, ModelLoadFailed, ModelNotReady
from core_grpc.types import Array, InferRequest

CREDITS = 4
"""Answers of one request that may be made before the first of them is taken."""

_NO_REQUEST = 0
"""The number of messages that belong to no request."""


class DecoupledPythonInstance:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, model: str, order: ProcessOrder, timeout_s: float) -> None:
        self._model = model
        self._order = order
        self._timeout_s = timeout_s
        self._restarts = Restarts()
        self._link: _Link | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def start(self) -> None:
        """Starts the process.

        Raises:
            ModelLoadFailed: see ``ModelProcess``.
        """
        self._link = await _Link.made(self._model, self._order)

    async def stream(self, inputs: Mapping[str, Array], request: InferRequest) -> AsyncGenerator[Mapping[str, Array], None]:
        """See ``DecoupledInstance``."""
        link = await self._working_link()
        number, frames = link.ask(inputs, request)
        is_over = False
        try:
            await link.sent()
            while (frame := await self._next(link, frames)).header["type"] == "answer":
                yield self._outputs(frame)
                link.tell({"type": "credit", "number": number})
            is_over = True
            self._restarts.worked()
            if frame.header["type"] == "error":
                raise user_error(self._model, frame.header)
        finally:
            link.forget(number, must_cancel=not is_over)

    async def close(self) -> None:
        """See ``DecoupledInstance``."""
        self._is_closed = True
        if self._link:
            await self._link.close()

    def _outputs(self, frame: Frame) -> Mapping[str, Array]:
        try:
            return TensorReader(frame.payload).tensors(frame.header["tensors"])
        except (KeyError, ValueError, TypeError):
            raise BackendFailed(f"model '{self._model}': its process answered something that cannot be read") from None

    async def _next(self, link: _Link, frames: asyncio.Queue[Frame | GatewayError]) -> Frame:
        half_s = self._timeout_s / 2
        frame = await _taken(frames, half_s)
        if frame is None:
            pinged_at = link.ping()
            frame = await _taken(frames, half_s)
            if frame is None:
                link.kill_if_silent(pinged_at)
                raise BackendFailed(f"model '{self._model}': no answer within [python] timeout_s = {self._timeout_s:g}")
        if isinstance(frame, GatewayError):
            raise type(frame)(frame.message)
        return frame

    async def _working_link(self) -> _Link:
        async with self._starting:
            if self._is_closed:
                raise ModelNotReady("the model is being unloaded")
            if self._link and not self._link.is_broken:
                return self._link
            if self._link:
                self._restarts.failed()
                await self._link.end()
                self._link = None
            self._restarts.check(self._model)
            try:
                self._link = await _Link.made(self._model, self._order)
            except ModelLoadFailed as error:
                self._restarts.failed()
                raise BackendFailed(f"model '{self._model}': its process could not be started again: {error.message}") from error
            return self._link


async def _taken(frames: asyncio.Queue[Frame | GatewayError], seconds: float) -> Frame | GatewayError | None:
    """The next message; None when none came in time."""
    try:
        async with asyncio.timeout(seconds):
            return await frames.get()
    except TimeoutError:
        return None


class _Link:
    """A running process and the requests that it works on."""

    def __init__(self, model: str, process: ModelProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._model = model
        self._process = process
        self._reader = reader
        self._writer = writer
        self._frames: dict[int, asyncio.Queue[Frame | GatewayError]] = {}
        self._last_number = _NO_REQUEST
        self._heard_at = time.monotonic()
        self.is_broken = False
        self._reading = asyncio.create_task(self._read(), name=f"answers of {model}")

    @classmethod
    async def made(cls, model: str, order: ProcessOrder) -> _Link:
        """Raises ModelLoadFailed: see ``ModelProcess``."""
        process = await asyncio.to_thread(ModelProcess, order)
        reader, writer = await asyncio.open_unix_connection(sock=process.connection.dup(), limit=READ_AHEAD_BYTES)
        return cls(model, process, reader, writer)

    def ask(self, inputs: Mapping[str, Array], request: InferRequest) -> tuple[int, asyncio.Queue[Frame | GatewayError]]:
        """Begins to send a request; gives its number and where its messages come. Ended by ``forget``."""
        self._last_number += 1
        number = self._last_number
        frames = self._frames[number] = asyncio.Queue()
        tensors = Tensors()
        described = described_request(inputs, request, tensors)
        self.tell({"type": "request", "number": number, **described}, tensors)
        return number, frames

    async def sent(self) -> None:
        """Waits until the process has taken most of what was sent."""
        with suppress(ConnectionError):  # The reader tells everybody.
            await self._writer.drain()

    def tell(self, header: Mapping[str, Any], tensors: Tensors | None = None) -> None:
        """Sends a message."""
        if not self.is_broken:
            self._writer.write(b"".join(packed(header, tensors.buffers if tensors else ())))

    def forget(self, number: int, *, must_cancel: bool) -> None:
        """Nobody waits for the messages of a request any more."""
        if self._frames.pop(number, None) is not None and must_cancel:
            self.tell({"type": "cancel", "number": number})

    def ping(self) -> float:
        """Asks the process for a sign of life; returns when."""
        self.tell({"type": "ping", "number": _NO_REQUEST})
        return time.monotonic()

    def kill_if_silent(self, pinged_at: float) -> None:
        """Ends a process from which nothing at all came since a ping: its loop is blocked, and nobody else's answer will come either."""
        if self._heard_at <= pinged_at:
            self.is_broken = True
            self._process.kill_soon()

    async def close(self) -> None:
        """Fails what still streams and ends the process."""
        self._fail_all(ModelNotReady("the model is being unloaded"))
        self._reading.cancel()
        await self.end()

    async def end(self) -> None:
        """Ends the process, after those who waited for it were told how it ended."""
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        await asyncio.to_thread(self._process.close)

    async def _read(self) -> None:
        try:
            while True:
                frame = await receive_async(self._reader)
                self._heard_at = time.monotonic()
                if frames := self._frames.get(frame.header["number"]):
                    frames.put_nowait(frame)
        except (EOFError, OSError):
            self.is_broken = True
            how = await asyncio.to_thread(self._process.ending)
            self._fail_all(BackendFailed(f"model '{self._model}': its process {how} while it ran the request"))
        except (KeyError, ValueError, TypeError):
            self.is_broken = True
            self._fail_all(BackendFailed(f"model '{self._model}': its process answered something that cannot be read"))

    def _fail_all(self, error: GatewayError) -> None:
        self.is_broken = True
        for frames in self._frames.values():
            frames.put_nowait(error)
