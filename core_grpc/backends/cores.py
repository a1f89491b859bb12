"""The logical processors that this process and its threads may run on."""

from __future__ import annotations

import os
from collections.abc import Sequence

CAN_PIN = hasattr(os, "sched_setaffinity")
"""Whether the system lets a program choose; Linux does."""


def usable_cores() -> tuple[int, ...]:
    """The processors that this thread may use; all of them, numbered from 0, where the system does not say which."""
    return tuple(sorted(os.sched_getaffinity(0))) if CAN_PIN else tuple(range(os.cpu_count() or 1))


def pin_this_thread(cores: Sequence[int]) -> None:
    """Lets the calling thread, and threads and processes that it starts from now on, run on these only; on all where there are none.

    Raises:
        OSError: there is no such processor, or this process may not use it.
    """
    if cores:
        os.sched_setaffinity(0, cores)
