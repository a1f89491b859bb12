"""Runs a plan for one request: each step as soon as what it takes is there, steps that do not wait for each other at once.

Tensors are handed on as they are, and let go of when the last step that takes them has begun. When a step fails, or the caller leaves,
the steps that still run are cancelled and waited for: nothing of a request is left when ``execute`` has ended. A chain of steps runs in
the caller's own task; tasks are made only where steps run side by side.

What runs a step is given: this module knows no models.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from core_grpc.pipelines.plan import Plan
from core_grpc.types import Array

Result = TypeVar("Result")


class RunStep(Protocol):
    """Runs one step."""

    def __call__(self, position: int, inputs: Mapping[str, Array], /) -> Coroutine[Any, Any, Mapping[str, Array]]:
        """The outputs of the step's model by their names there, as ``inputs`` are by the names of its inputs.

        An input that nobody gave is left out; so may outputs be.
        """
        ...


async def execute(plan: Plan, given: Mapping[str, Array], outputs: Collection[str], run: RunStep) -> Mapping[str, Array]:
    """The wanted ``outputs`` of a plan from what the caller has ``given``, both by tensor. One that its step did not make is left out.

    Raises:
        whatever ``run`` raises first; the other steps are cancelled then.
    """
    state = _Execution(plan, given, outputs)
    running: dict[asyncio.Task[Mapping[str, Array]], int] = {}
    try:
        while True:
            ready = state.take_ready()
            if len(ready) == 1 and not running:
                state.finish(ready[0], await run(ready[0], state.inputs(ready[0])))
                continue
            for position in ready:
                running[asyncio.create_task(run(position, state.inputs(position)))] = position
            if not running:
                return state.results()
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                state.finish(running.pop(task), task.result())
    finally:
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

    def __init__(self, plan: Plan, given: Mapping[str, Array], outputs: Collection[str]) -> None:
        self._plan = plan
        self._wanted = outputs
        self._values = dict(given)
        self._settled = {name for name, maker in plan.makers.items() if maker < 0}
        """Tensors whose maker is through with them, made or not."""
        self._left = sorted(plan.needed(outputs))
        self._takers = Counter(tensor for position in self._left for tensor in set(plan.steps[position].inputs.values()))
        self._takers.update(outputs)

    def take_ready(self) -> list[int]:
        """The steps that can begin, each once."""
        ready = [position for position in self._left if self._settled.issuperset(self._plan.steps[position].inputs.values())]
        if ready:
            self._left = [position for position in self._left if position not in ready]
        return ready

    def inputs(self, position: int) -> Mapping[str, Array]:
        """What a step takes. To be asked once: what nobody else takes is forgotten."""
        step = self._plan.steps[position]
        inputs = {name: self._values[tensor] for name, tensor in step.inputs.items() if tensor in self._values}
        for tensor in set(step.inputs.values()):
            self._takers[tensor] -= 1
            if not self._takers[tensor]:
                self._values.pop(tensor, None)
        return inputs

    def finish(self, position: int, made: Mapping[str, Array]) -> None:
        """The step has run."""
        for name, tensor in self._plan.steps[position].outputs.items():
            self._settled.add(tensor)
            if name in made and self._takers[tensor]:
                self._values[tensor] = made[name]

    def results(self) -> Mapping[str, Array]:
        """The wanted outputs, in the pipeline's order."""
        return {name: self._values[name] for name in self._wanted if name in self._values}
