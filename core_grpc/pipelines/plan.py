"""The graph of a pipeline: who makes each tensor, who takes it, and what is left to do when only some outputs are wanted.

Pure. A plan is made once, when the pipeline is loaded. Of every plan holds:

* each tensor has one maker: the caller, or one step;
* each tensor that a step takes has a maker, and no step waits for itself, directly or through others;
* each of the pipeline's inputs is taken by a step, and each of its outputs is made by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from core_grpc.errors import ModelLoadFailed, quoted
from core_grpc.pipelines.step import Step, titled

CALLER = -1
"""The maker of the pipeline's inputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module's text. Steps are known by their position in ``steps``."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    """The pipeline's."""
    makers: Mapping[str, int]
    """The step that makes a tensor; ``CALLER`` for the pipeline's inputs."""
    order: tuple[int, ...]
    """Every step, after those that make what it takes."""

    def needed(self, outputs: Collection[str]) -> frozenset[int]:
        """The steps without which ``outputs`` cannot be made."""
        wanted, found = list(outputs), set[int]()
        while wanted:
            maker = self.makers[wanted.pop()]
            if maker != CALLER and maker not in found:
                found.add(maker)
                wanted.extend(self.steps[maker].inputs.values())
        return frozenset(found)

    def titled(self, position: int) -> str:
        """The step as errors name it."""
        return titled(position, self.steps[position])

    def origin(self, tensor: str) -> str:
        """Where a tensor comes from, as errors say it."""
        maker = self.makers[tensor]
        return "the caller" if maker == CALLER else self.titled(maker)


def make_plan(steps: Sequence[Step], inputs: Collection[str], outputs: Collection[str]) -> Plan:
    """Joins the steps of a pipeline that takes ``inputs`` and gives ``outputs``.

    Raises:
        ModelLoadFailed: what the module's text promises does not hold; the text names the step.
    """
    if not steps:
        raise ModelLoadFailed("model.toml: a pipeline needs at least one [[step]], got none")
    makers = _makers(steps, inputs)
    for position, step in enumerate(steps):
        _check_step(titled(position, step), step, makers)
    for name in outputs:
        if makers.get(name, CALLER) == CALLER:
            raise ModelLoadFailed(f"model.toml: [output.{name}]: no step makes this tensor; the steps make {_names(_made(makers))}")
    if not outputs:
        raise ModelLoadFailed("model.toml: a pipeline needs at least one [output.NAME], got none")
    taken = {tensor for step in steps for tensor in step.inputs.values()}
    for name in inputs:
        if name not in taken:
            raise ModelLoadFailed(f"model.toml: [input.{name}]: no step takes this tensor; the steps take {_names(taken)}")
    return Plan(tuple(steps), tuple(outputs), makers, _order(steps, makers))


def _makers(steps: Sequence[Step], inputs: Collection[str]) -> dict[str, int]:
    makers = dict.fromkeys(inputs, CALLER)
    for position, step in enumerate(steps):
        for output, tensor in step.outputs.items():
            if tensor in makers:
                earlier = makers[tensor]
                other = "an input of the pipeline" if earlier == CALLER else f"made by {titled(earlier, steps[earlier])}"
                raise ModelLoadFailed(
                    f"model.toml: {titled(position, step)} outputs.{output}: wanted a tensor of its own, got {quoted(tensor)}, "
                    f"which is {other} already"
                )
            makers[tensor] = position
    return makers


def _check_step(title: str, step: Step, makers: Mapping[str, int]) -> None:
    if not step.inputs or not step.outputs:
        role = "outputs" if step.inputs else "inputs"
        raise ModelLoadFailed(f"model.toml: {title} {role}: wanted at least one, got none")
    for name, tensor in step.inputs.items():
        if tensor not in makers:
            raise ModelLoadFailed(
                f"model.toml: {title} inputs.{name}: wanted an input of the pipeline or what a step makes ({_names(makers)}), "
                f"got {quoted(tensor)}"
            )


def _order(steps: Sequence[Step], makers: Mapping[str, int]) -> tuple[int, ...]:
    waits_for = {
        position: {makers[tensor] for tensor in step.inputs.values() if makers[tensor] != CALLER} for position, step in enumerate(steps)
    }
    try:
        return tuple(TopologicalSorter(waits_for).static_order())
    except CycleError as error:
        # The sorter names the first one at both ends, each before the one that waits for it.
        circle = " to ".join(titled(position, steps[position]) for position in error.args[1])
        raise ModelLoadFailed(f"model.toml: steps wait for each other in a circle: {circle}") from None


def _made(makers: Mapping[str, int]) -> Iterable[str]:
    return [name for name, maker in makers.items() if maker != CALLER]


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(map(quoted, listed[:8])) + more if listed else "none"
