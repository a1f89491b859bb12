"""The child's side of a decoupled model: many requests at once, each answer sent when it is made.

The server asks for a sign of life by ``ping``, which is answered by ``pong`` unless user code blocks the loop.

The server gives each request a few credits, one for each answer that it is ready to hold; an answer costs one. So a caller who reads
slowly holds back its own generator and no other.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any

from core_grpc.backends.python.answers import DeclaredOutput, checked_outputs
from core_grpc.backends.python.framing import PREFIX, Frame, TensorReader, Tensors, packed, sizes_from
from core_grpc.backends.python.requests import request_from
from core_grpc.backends.python.user_model import told
from core_grpc.python_model import InferenceError, Request
from core_grpc.types import Array

READ_AHEAD_BYTES = 1 << 20
"""Of the stream that are read before anybody asks."""

_END = object()
_THREADS = 64
"""Plain generators that run at once; more wait."""


async def receive_async(reader: asyncio.StreamReader) -> Frame:
    """The next message.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    header_bytes, payload_bytes = sizes_from(await reader.readexactly(PREFIX.size))
    header = json.loads(await reader.readexactly(header_bytes))
    return Frame(header, memoryview(await reader.readexactly(payload_bytes)))


async def serve_decoupled(connection: socket.socket, model: Any, outputs: Sequence[DeclaredOutput], credits_at_first: int) -> None:
    """Serves until the server says ``close``; ends the process when the server is gone."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "generator"))
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=READ_AHEAD_BYTES)
    server = _Server(model, outputs, writer, credits_at_first)
    try:
        while (frame := await receive_async(reader)).header["type"] != "close":
            server.take(frame)
    except (EOFError, OSError):
        os._exit(0)


class _Server:
    def __init__(self, model: Any, outputs: Sequence[DeclaredOutput], writer: asyncio.StreamWriter, credits_at_first: int) -> None:
        self._model = model
        self._outputs = outputs
        self._writer = writer
        self._credits_at_first = credits_at_first
        self._tasks: dict[int, tuple[asyncio.Task[None], asyncio.Semaphore]] = {}

    def take(self, frame: Frame) -> None:
        number = frame.header["number"]
        if frame.header["type"] == "request":
            room = asyncio.Semaphore(self._credits_at_first)
            task = asyncio.create_task(self._answer(number, frame, room))
            self._tasks[number] = task, room
            task.add_done_callback(lambda _task: self._tasks.pop(number, None))
        elif frame.header["type"] == "ping":
            self._writer.write(b"".join(packed({"type": "pong", "number": number})))
        elif number in self._tasks:
            task, room = self._tasks[number]
            if frame.header["type"] == "credit":
                room.release()
            else:
                task.cancel()

    async def _answer(self, number: int, frame: Frame, room: asyncio.Semaphore) -> None:
        try:
            request = request_from(frame.header, TensorReader(frame.payload))
            async with aclosing(_answers(self._model, request)) as answers:
                async for answer in answers:
                    await room.acquire()
                    tensors = Tensors()
                    described = tensors.described(self._outputs_of(answer))
                    await self._send({"type": "answer", "number": number, "tensors": described}, tensors.buffers)
            await self._send({"type": "end", "number": number})
        except InferenceError as error:
            await self._send({"type": "error", "number": number, "message": error.message, "code": error.code})
        except Exception as error:  # noqa: BLE001 (user code)
            await self._send({"type": "error", "number": number, "message": told(error), "code": "INTERNAL"})

    def _outputs_of(self, answer: object) -> Mapping[str, Array]:
        if isinstance(answer, InferenceError):
            raise answer
        return checked_outputs(answer, self._outputs, None, may_lack=True)

    async def _send(self, header: Mapping[str, Any], buffers: Sequence[memoryview] = ()) -> None:
        # In one piece: other requests' messages must not come in between.
        self._writer.write(b"".join(packed(header, buffers)))
        await self._writer.drain()


async def _answers(model: Any, request: Request) -> AsyncGenerator[Any, None]:
    """What ``execute`` yields. A plain generator runs on a thread, an answer at a time."""
    made = model.execute(request)
    if inspect.isasyncgen(made):
        async with aclosing(made) as answers:
            async for answer in answers:
                yield answer
        return
    loop = asyncio.get_running_loop()
    try:
        while (answer := await loop.run_in_executor(None, next, made, _END)) is not _END:
            yield answer
    finally:
        request.is_cancelled = True
        with suppress(ValueError):  # It is running on its thread: it may look at is_cancelled.
            made.close()
