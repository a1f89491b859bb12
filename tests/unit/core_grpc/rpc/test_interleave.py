"""One stream of requests, and their answers: order, bounds, failures, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

import pytest

from core_grpc.errors import ServerDraining
from core_grpc.rpc.interleave import Interleaver


async def stream_of(items: Iterable[int]) -> AsyncIterator[int]:
    for item in items:
        yield item


class Work:
    """Answers each request ``answers`` times once its gate is open, and remembers what was begun and what was cut short."""

    def __init__(self, answers: int = 1) -> None:
        self.answers = answers
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}

    async def respond(self, request: int) -> AsyncGenerator[tuple[int, int], None]:
        self.begun.append(request)
        try:
            if request in self.gates:
                await self.gates[request].wait()
            for number in range(self.answers):
                yield request, number
        finally:
            self.ended.append(request)


def interleaver(
    work: Work, *, is_ordered: Callable[[int], bool] = lambda _request: True, room: int = 8
) -> Interleaver[int, tuple[int, int]]:
    return Interleaver(work.respond, is_ordered, max_requests=room, max_bytes=1000, size_of=lambda _request: 1)


async def test_answers_come_in_the_order_of_the_requests() -> None:
    work = Work()
    work.gates = {0: asyncio.Event()}
    answers = interleaver(work).run(stream_of(range(5)))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    assert work.begun == [0, 1, 2, 3, 4], "requests are read while the first is being answered"
    assert not first.done(), "the others are ready, but it is the first one's turn"
    work.gates[0].set()
    assert [await first, *[answer async for answer in answers]] == [(i, 0) for i in range(5)]


async def test_what_is_not_ordered_comes_as_it_is_made() -> None:
    work = Work(answers=2)
    work.gates = {0: asyncio.Event()}
    answers = interleaver(work, is_ordered=lambda _request: False).run(stream_of(range(3)))
    got = [await anext(answers) for _ in range(4)]
    assert sorted(got) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert got.index((1, 0)) < got.index((1, 1))
    work.gates[0].set()
    assert [answer async for answer in answers] == [(0, 0), (0, 1)]


async def test_one_that_is_not_ordered_holds_up_nobody() -> None:
    work = Work()
    work.gates = {1: asyncio.Event()}
    answers = interleaver(work, is_ordered=lambda request: request != 1).run(stream_of(range(3)))
    assert [await anext(answers), await anext(answers)] == [(0, 0), (2, 0)]
    work.gates[1].set()
    assert await anext(answers) == (1, 0)


async def test_reads_no_further_than_it_has_room() -> None:
    work = Work()
    work.gates = {i: asyncio.Event() for i in range(10)}
    answers = interleaver(work, room=3).run(stream_of(range(10)))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    assert work.begun == [0, 1, 2]
    for gate in work.gates.values():
        gate.set()
    assert [await first, *[answer async for answer in answers]] == [(i, 0) for i in range(10)]


async def test_a_reader_that_stops_holds_back_what_is_made() -> None:
    made: list[int] = []

    async def respond(_request: int) -> AsyncGenerator[int, None]:
        for number in range(1000):
            made.append(number)
            yield number

    answers = Interleaver(respond, lambda _request: False, max_requests=8, max_bytes=8, size_of=lambda _request: 1).run(stream_of([0]))
    assert await anext(answers) == 0
    await asyncio.sleep(0.01)
    assert len(made) < 20
    assert [answer async for answer in answers] == list(range(1, 1000))


async def test_a_reader_that_leaves_ends_all_work() -> None:
    work = Work()
    work.gates = {i: asyncio.Event() for i in range(1, 4)}
    answers = interleaver(work).run(stream_of(range(4)))
    assert await anext(answers) == (0, 0)
    await asyncio.sleep(0.01)
    await answers.aclose()
    assert sorted(work.ended) == [0, 1, 2, 3]


async def test_no_requests_at_all() -> None:
    assert [answer async for answer in interleaver(Work()).run(stream_of([]))] == []


@pytest.mark.parametrize("is_ordered", [True, False])
async def test_a_failure_of_respond_ends_the_stream(is_ordered: bool) -> None:
    async def respond(request: int) -> AsyncGenerator[int, None]:
        if request == 1:
            raise ValueError("no")
        yield request

    answers = Interleaver(respond, lambda _request: is_ordered, max_requests=8, max_bytes=8, size_of=lambda _request: 1).run(
        stream_of(range(2))
    )
    with pytest.raises(ValueError, match="no"):
        _ = [answer async for answer in answers]


@pytest.mark.parametrize("error", [ValueError("not a message"), asyncio.CancelledError()])
async def test_a_failure_of_the_requests_ends_the_stream(error: BaseException) -> None:
    async def requests() -> AsyncIterator[int]:
        yield 0
        raise error

    work = Work()
    work.gates = {0: asyncio.Event()}
    with pytest.raises(type(error)):
        _ = [answer async for answer in interleaver(work).run(requests())]
    assert work.ended == work.begun, "nobody is left to answer"


async def test_stopped_it_answers_what_it_read_and_says_why_it_ends() -> None:
    async def requests() -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()

    work = Work()
    work.gates = {0: asyncio.Event()}
    stream = interleaver(work)
    answers = stream.run(requests())
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    stream.stop()
    await asyncio.sleep(0.01)
    work.gates[0].set()
    assert await first == (0, 0)
    with pytest.raises(ServerDraining):
        await anext(answers)


async def test_stopped_it_answers_the_request_that_waits_for_room_as_well() -> None:
    work = Work()
    work.gates = {0: asyncio.Event()}
    stream = interleaver(work, room=1)
    answers = stream.run(stream_of(range(5)))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    assert work.begun == [0], "1 was read and waits"
    stream.stop()
    await asyncio.sleep(0.01)
    work.gates[0].set()
    assert [await first, await anext(answers)] == [(0, 0), (1, 0)]
    with pytest.raises(ServerDraining):
        await anext(answers)
    assert work.begun == [0, 1]


async def test_stopped_with_everything_read_it_answers_and_ends() -> None:
    work = Work()
    work.gates = {0: asyncio.Event()}
    stream = interleaver(work)
    answers = stream.run(stream_of(range(2)))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    stream.stop()
    await asyncio.sleep(0.01)
    work.gates[0].set()
    async with asyncio.timeout(5):
        assert [await first, *[answer async for answer in answers]] == [(0, 0), (1, 0)]


async def test_stopped_before_it_read_anything_it_ends() -> None:
    work = Work()
    stream = interleaver(work)
    first = asyncio.ensure_future(anext(stream.run(stream_of(range(2)))))
    asyncio.get_running_loop().call_soon(stream.stop)  # Between the first step of the stream and that of its reader.
    async with asyncio.timeout(5):
        with pytest.raises(ServerDraining):
            await first
    assert work.begun == []


async def test_reads_no_more_bytes_than_it_may_hold_but_always_one_request() -> None:
    work = Work()
    work.gates = {size: asyncio.Event() for size in (3, 4, 50, 5)}
    stream = Interleaver(work.respond, lambda _request: False, max_requests=8, max_bytes=8, size_of=lambda request: request)
    answers = stream.run(stream_of([3, 4, 50, 5]))
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0.01)
    assert work.begun == [3, 4]
    work.gates[3].set()
    assert await first == (3, 0)
    await asyncio.sleep(0.01)
    assert work.begun == [3, 4], "50 does not fit beside 4"
    work.gates[4].set()
    assert await anext(answers) == (4, 0)
    await asyncio.sleep(0.01)
    assert work.begun == [3, 4, 50], "alone it may"
    work.gates[50].set()
    work.gates[5].set()
    assert [answer async for answer in answers] == [(50, 0), (5, 0)]
