"""Work that would hold up the event loop, which belongs to everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

Result = TypeVar("Result")

INLINE_JSON_BYTES = 1 << 16
"""JSON up to this size is read and written on the event loop: less than going to a thread costs."""


async def off_loop(work: Callable[[], Result], pool: Executor | None, *, is_large: bool) -> Result:
    """Does small work here and large work on a thread of ``pool``, by default the event loop's own."""
    return await asyncio.get_running_loop().run_in_executor(pool, work) if is_large else work()
