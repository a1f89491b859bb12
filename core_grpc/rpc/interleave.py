"""Many requests of one stream at once, and their answers on the one stream back.

Requests are read while others are being answered, up to a limit of number and bytes; then the caller's flow control holds the rest. Answers
wait for the reader in a queue of a few: when it is full, what makes them waits too. So a slow reader holds back its own stream and nothing
else, and what one stream can take is bounded in both directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from core_grpc.data_plane import DataPlane
from core_grpc.errors import ServerDraining
from core_grpc.settings import LimitsSettings
from core_grpc.types import CallerStream

Request = TypeVar("Request")
Answer = TypeVar("Answer")

_AHEAD = 8
"""Answers that wait for the reader."""
_GOING_AWAY = "the server is shutting down and takes no new work"


async def interleaved(  # noqa: PLR0917 (a stream: where it runs, what comes, and what is done with it)
    data_plane: DataPlane,
    limits: LimitsSettings,
    requests: AsyncIterator[Request],
    respond: Callable[[Request], AsyncGenerator[Answer, None]],
    is_ordered: Callable[[Request], bool],
    size_of: Callable[[Request], int],
    stream: CallerStream,
) -> AsyncGenerator[Answer, None]:
    """The answers of one stream within the limits, until all requests are answered or the server takes no new work.

    Args:
        respond, is_ordered, size_of: see ``Interleaver``.
        stream: ends with it.

    Raises:
        as ``Interleaver.run``.
    """
    interleaver = Interleaver(
        respond, is_ordered, max_requests=limits.max_stream_requests, max_bytes=limits.max_message_bytes, size_of=size_of
    )
    with stream, data_plane.on_stop_accepting(interleaver.stop):
        async with aclosing(interleaver.run(requests)) as answers:
            async for answer in answers:
                yield answer


class _Over:
    """The last entry of the queue: why the stream ends."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Interleaver(Generic[Request, Answer]):
    """One stream. Belongs to the task that serves it.

    ``respond`` gives a request's answers; what it raises ends the whole stream, so it makes answers of its failures. The answers of
    requests for which ``is_ordered`` is true come in the order of the requests; all others as they are made.
    """

    def __init__(
        self,
        respond: Callable[[Request], AsyncGenerator[Answer, None]],
        is_ordered: Callable[[Request], bool],
        *,
        max_requests: int,
        max_bytes: int,
        size_of: Callable[[Request], int],
    ) -> None:
        """At most ``max_requests`` are in work, and ``max_bytes`` of them by ``size_of``; one always may."""
        self._respond = respond
        self._is_ordered = is_ordered
        self._room = asyncio.Semaphore(max_requests)
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._bytes = 0
        """Of the requests in work."""
        self._freed = asyncio.Event()
        self._answers: asyncio.Queue[Answer | _Over] = asyncio.Queue(_AHEAD)
        self._working: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._held: Request | None = None
        """The request that was read and waits for room."""
        self._turn: asyncio.Future[None] | None = None
        """Done when the last ordered request that was read has given its answers."""
        self._is_reading = False
        """Whether requests may still come: only then is there something to stop."""
        self._is_stopped = False

    def stop(self) -> None:
        """Reads no more requests: those that were read are answered, room or no room, then the stream ends with ServerDraining."""
        self._is_stopped = True
        if self._reading and self._is_reading:
            self._reading.cancel()

    async def run(self, requests: AsyncIterator[Request]) -> AsyncGenerator[Answer, None]:
        """The answers, until all requests are answered.

        Raises:
            ServerDraining: ``stop`` was called.
            whatever ``requests`` and ``respond`` raise.
        """
        self._reading = asyncio.create_task(self._read(requests), name="stream requests")
        try:
            while not isinstance(answer := await self._answers.get(), _Over):
                yield answer
            if answer.error:
                raise answer.error
        finally:
            tasks = [self._reading, *self._working]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Request]) -> None:
        error: BaseException | None = None
        try:
            await self._begin_all(requests)
        except asyncio.CancelledError:
            if not self._is_stopped:
                # Raised by ``requests`` (the caller has left), or the stream is over anyway.
                await self._answers.put(_Over(asyncio.CancelledError()))
                raise
            error = ServerDraining(_GOING_AWAY)
            if self._held is not None:
                self._begin(self._held)
        except Exception as caught:  # noqa: BLE001 (carried to whoever reads the answers)
            error = caught
        if error is None or self._is_stopped:
            while self._working:
                await asyncio.wait(self._working)
        await self._answers.put(_Over(error))

    async def _begin_all(self, requests: AsyncIterator[Request]) -> None:
        if self._is_stopped:
            raise ServerDraining(_GOING_AWAY)
        self._is_reading = True
        try:
            async for request in requests:
                self._held = request
                await self._wait_for_room(self._size_of(request))
                self._held = None
                self._begin(request)
        finally:
            self._is_reading = False

    async def _wait_for_room(self, size: int) -> None:
        await self._room.acquire()
        while self._working and self._bytes + size > self._max_bytes:
            self._freed.clear()
            await self._freed.wait()

    def _begin(self, request: Request) -> None:
        size = self._size_of(request)
        self._bytes += size
        before, mine = None, None
        if self._is_ordered(request):
            before, mine = self._turn, asyncio.get_running_loop().create_future()
            self._turn = mine
        task = asyncio.create_task(self._answer(request, before, mine))
        self._working.add(task)

        def is_done(task: asyncio.Task[None]) -> None:
            self._working.discard(task)
            self._bytes -= size
            self._freed.set()

        task.add_done_callback(is_done)

    async def _answer(self, request: Request, before: asyncio.Future[None] | None, mine: asyncio.Future[None] | None) -> None:
        try:
            async with aclosing(self._respond(request)) as answers:
                async for answer in answers:
                    if before is not None:
                        await before
                        before = None
                    await self._answers.put(answer)
        except Exception as error:  # noqa: BLE001 (carried to whoever reads the answers)
            await self._answers.put(_Over(error))
        finally:
            self._room.release()
            if mine is not None and not mine.done():  # Done when the request that waited for it was cancelled first.
                mine.set_result(None)
