"""Runs a plan for one request: each step as soon as what it takes is there, steps that do not wait for each other at once.

Tensors are handed on as they are, and let go of when the last step that takes them has begun. When a step fails, or the caller leaves,
the steps that still run are cancelled and waited for: nothing of a request is left when ``execute`` has ended. A chain of steps runs in
the caller's own task; tasks are made only where steps run side by side.

What runs a step is given: this module knows no models.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from core_grpc.pipelines.plan import CALLER, Plan
from core_grpc.types import Array

Result = TypeVar("Result")


class RunStep(Protocol):
    """Runs one step."""

    def __call__(self, position: int, inputs: Mapping[str, Array], /) -> Coroutine[Any, Any, Mapping[str, Array]]:
        """The outputs of the step's model by their names there, as ``inputs`` are by the names of its inputs.

        An input that nobody gave is left out; so may outputs be.
        """
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done for some outputs of a plan. Made once for the outputs that are always asked for."""

    outputs: tuple[str, ...]
    """In the order of the answer."""
    first: tuple[int, ...]
    """The steps that take only what the caller gives."""
    waits_for: Mapping[int, int]
    """How many steps each of the others waits for."""
    followers: Mapping[int, tuple[int, ...]]
    """The steps that wait for a step."""
    takers: Mapping[str, int]
    """How many steps take a tensor; an output is taken once more, by the answer."""


def work_for(plan: Plan, outputs: Sequence[str]) -> Work:
    """The steps without which ``outputs`` cannot be made, and who waits for whom among them."""
    needed = sorted(plan.needed(outputs))
    before = {position: {plan.makers[tensor] for tensor in plan.steps[position].inputs.values()} - {CALLER} for position in needed}
    takers = Counter(tensor for position in needed for tensor in set(plan.steps[position].inputs.values()))
    takers.update(outputs)
    return Work(
        tuple(outputs),
        tuple(position for position in needed if not before[position]),
        {position: len(makers) for position, makers in before.items() if makers},
        {maker: tuple(position for position in needed if maker in before[position]) for maker in needed},
        takers,
    )


async def execute(plan: Plan, work: Work, given: Mapping[str, Array], run: RunStep) -> Mapping[str, Array]:
    """The outputs of ``work`` from what the caller has ``given``, both by tensor. One that its step did not make is left out.

    Raises:
        whatever ``run`` raises first; the other steps are cancelled then.
    """
    state = _Execution(plan, work, given)
    ready: Sequence[int] = work.first
    running: dict[asyncio.Task[Mapping[str, Array]], int] = {}
    try:
        while True:
            if len(ready) == 1 and not running:
                ready = state.finish(ready[0], await run(ready[0], state.inputs(ready[0])))
                continue
            for position in ready:
                running[asyncio.create_task(run(position, state.inputs(position)))] = position
            if not running:
                return state.results()
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            ready = [follower for task in done for follower in state.finish(running.pop(task), task.result())]
    finally:
        if running:
            await _ended(running)


async def together(work: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results, in order, of coroutines that run at once.

    Raises:
        whatever one of them raises first; the others are cancelled and have ended then.
    """
    tasks = [asyncio.create_task(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _ended(tasks)


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    # Those that are done are asked too: an exception that nobody fetches is logged as lost.
    await asyncio.gather(*tasks, return_exceptions=True)


class _Execution:
    """What is there, and what is left to do."""

    def __init__(self, plan: Plan, work: Work, given: Mapping[str, Array]) -> None:
        self._plan = plan
        self._work = work
        self._values = dict(given)
        self._waits_for = dict(work.waits_for)
        self._takers = dict(work.takers)

    def inputs(self, position: int) -> Mapping[str, Array]:
        """What a step takes. To be asked once: what nobody else takes is forgotten."""
        values, takers = self._values, self._takers
        tensors = self._plan.steps[position].inputs
        inputs = {name: values[tensor] for name, tensor in tensors.items() if tensor in values}
        for tensor in set(tensors.values()):
            takers[tensor] -= 1
            if not takers[tensor]:
                values.pop(tensor, None)
        return inputs

    def finish(self, position: int, made: Mapping[str, Array]) -> Sequence[int]:
        """The step has run; gives the steps that waited for it alone and can begin."""
        for name, tensor in self._plan.steps[position].outputs.items():
            if name in made and tensor in self._takers:
                self._values[tensor] = made[name]
        ready: list[int] = []
        for follower in self._work.followers[position]:
            self._waits_for[follower] -= 1
            if not self._waits_for[follower]:
                ready.append(follower)
        return ready

    def results(self) -> Mapping[str, Array]:
        """The outputs, in their order."""
        return {name: self._values[name] for name in self._work.outputs if name in self._values}
