"""Who works on one name waits for the one before; nothing is kept for names that are done with."""

from __future__ import annotations

import asyncio

from core_grpc.models.turns import Turns


async def test_one_at_a_time_by_name_and_nothing_is_kept() -> None:
    turns, order = Turns(), list[str]()
    may_end = asyncio.Event()

    async def work(name: str, label: str) -> None:
        async with turns.of(name):
            order.append(f"{label} begins")
            if label == "first":
                await may_end.wait()
            order.append(f"{label} ends")

    first, second = asyncio.create_task(work("m", "first")), asyncio.create_task(work("m", "second"))
    leaver = asyncio.create_task(work("m", "leaver"))
    await asyncio.sleep(0)
    leaver.cancel()
    await work("other", "other")
    assert order == ["first begins", "other begins", "other ends"]
    assert len(turns) == 1
    may_end.set()
    await asyncio.gather(first, second, leaver, return_exceptions=True)
    assert order[3:] == ["first ends", "second begins", "second ends"]
    assert len(turns) == 0
