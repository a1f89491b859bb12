"""Random graphs: a pipeline computes what the graph says, runs nothing twice or for nothing, and leaves nothing behind.

The steps run on the event loop itself; how they take turns is drawn too.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core_grpc.errors import BackendFailed
from core_grpc.pipelines.executor import execute, work_for
from core_grpc.pipelines.plan import Plan, make_plan
from core_grpc.pipelines.step import Step
from core_grpc.types import Array


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to eight steps with up to three inputs and two outputs, in any order; the pipeline's outputs are any of theirs."""
    tensors, steps = ["in0", "in1"], []
    for position in range(draw(st.integers(1, 8))):
        taken = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        made = [f"t{position}.{at}" for at in range(draw(st.integers(1, 2)))]
        steps.append(
            Step(f"m{position}", "", {f"i{at}": name for at, name in enumerate(taken)}, {f"o{at}": name for at, name in enumerate(made)})
        )
        tensors += made
    given_by_caller = {name for step in steps for name in step.inputs.values() if name.startswith("in")}
    outputs = draw(st.lists(st.sampled_from([name for name in tensors if not name.startswith("in")]), min_size=1, max_size=4, unique=True))
    return make_plan(draw(st.permutations(steps)), sorted(given_by_caller), outputs)


def computed(step: Step, output: str, inputs: Mapping[str, Array]) -> Array:
    """Depends on the step, the output, and which input has which value."""
    weights = {name: int(name[1:]) + 2 for name in inputs}
    return np.asarray(
        sum(weights[name] * value for name, value in inputs.items()) * 31 + int(step.model[1:]) * 7 + int(output[1:]), np.int64
    )


class Steps:
    """Runs steps in turns of the loop, as many as ``turns`` says; ``faults`` fail then."""

    def __init__(self, plan: Plan, turns: Mapping[str, int], faults: frozenset[str] = frozenset()) -> None:
        self.plan, self.turns, self.faults = plan, turns, faults
        self.ran: list[int] = []
        self.running: set[int] = set()
        self.most_at_once = 0

    async def run(self, position: int, inputs: Mapping[str, Array], /) -> Mapping[str, Array]:
        step = self.plan.steps[position]
        self.ran.append(position)
        self.running.add(position)
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            assert set(inputs) == set(step.inputs), "a step runs once all that it takes is there"
            for _ in range(self.turns[step.model]):
                await asyncio.sleep(0)
            if step.model in self.faults:
                raise BackendFailed(step.model)
            return {name: computed(step, name, inputs) for name in step.outputs}
        finally:
            self.running.remove(position)


def expected(plan: Plan, given_values: Mapping[str, Array]) -> Mapping[str, Array]:
    """The same graph, evaluated directly."""
    values = dict(given_values)
    for position in plan.order:
        step = plan.steps[position]
        inputs = {name: values[tensor] for name, tensor in step.inputs.items()}
        values |= {tensor: computed(step, name, inputs) for name, tensor in step.outputs.items()}
    return values


VALUES: Mapping[str, Array] = {"in0": np.array([1, 2, 3]), "in1": np.array([10, 20, 30])}
turns = st.fixed_dictionaries({f"m{position}": st.integers(0, 4) for position in range(8)})


def values_of(plan: Plan) -> dict[str, Array]:
    return {name: VALUES[name] for name, maker in plan.makers.items() if maker < 0}


@given(plans(), turns, st.data())
def test_any_graph_computes_what_it_says(plan: Plan, turns: Mapping[str, int], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(plan.outputs), min_size=1, unique=True))
    steps = Steps(plan, turns)
    got = asyncio.run(execute(plan, work_for(plan, wanted), values_of(plan), steps.run))
    assert list(got) == wanted
    for name, value in expected(plan, values_of(plan)).items():
        if name in wanted:
            np.testing.assert_array_equal(got[name], value)
    assert sorted(steps.ran) == sorted(plan.needed(wanted)), "each step that is needed runs once, no other does"


@given(plans(), turns, st.integers(0, 12), st.sets(st.sampled_from([f"m{position}" for position in range(8)]), max_size=3))
def test_nothing_is_left_of_a_request_that_ends_early(plan: Plan, turns: Mapping[str, int], leaves_at: int, faults: set[str]) -> None:
    """Its caller leaves after any number of turns, or steps fail, or both."""
    steps = Steps(plan, turns, frozenset(faults))

    async def ask() -> Any:
        asking = asyncio.create_task(execute(plan, work_for(plan, plan.outputs), values_of(plan), steps.run))
        for _ in range(leaves_at):
            await asyncio.sleep(0)
        asking.cancel()
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)
        assert not steps.running, "steps have ended when the request has"
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return outcome

    outcome = asyncio.run(ask())
    if isinstance(outcome, BackendFailed):
        assert outcome.message in faults
    elif not isinstance(outcome, asyncio.CancelledError):
        assert set(outcome) == set(plan.outputs)
        assert not {plan.steps[position].model for position in plan.needed(plan.outputs)} & faults


def test_steps_that_do_not_wait_for_each_other_run_at_once() -> None:
    branches = [Step(f"m{at}", "", {"i0": "in0"}, {"o0": f"b{at}"}) for at in range(3)]
    plan = make_plan([*branches, Step("m3", "", {f"i{at}": f"b{at}" for at in range(3)}, {"o0": "out"})], ["in0"], ["out"])
    steps = Steps(plan, dict.fromkeys(("m0", "m1", "m2", "m3"), 3))
    asyncio.run(execute(plan, work_for(plan, plan.outputs), values_of(plan), steps.run))
    assert steps.most_at_once == 3


def test_a_tensor_is_let_go_of_when_its_last_taker_has_begun() -> None:
    """Of a long chain of large tensors, two are alive at a time."""
    plan = make_plan([Step(f"m{at}", "", {"i0": f"t{at}"}, {"o0": f"t{at + 1}"}) for at in range(4)], ["t0"], ["t4"])
    alive: list[weakref.ref[Array]] = []

    async def run(_position: int, _inputs: Mapping[str, Array], /) -> Mapping[str, Array]:
        assert sum(made() is not None for made in alive) <= 1, "what a step takes, and nothing from before it"
        array = np.zeros(8)
        alive.append(weakref.ref(array))
        return {"o0": array}

    asyncio.run(execute(plan, work_for(plan, plan.outputs), {"t0": np.zeros(1)}, run))
