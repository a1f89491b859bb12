"""Graphs that are joined, and those that are refused, each with the line that says why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.pipelines.plan import CALLER, make_plan
from core_grpc.pipelines.step import Step


def step(model: str, inputs: str, outputs: str) -> Step:
    """Tensors by letters, the model's names being i0, i1, … and o0, o1, …."""
    return Step(
        model, "", {f"i{at}": name for at, name in enumerate(inputs.split())}, {f"o{at}": name for at, name in enumerate(outputs.split())}
    )


DIAMOND = [step("last", "C B", "D"), step("left", "A", "B"), step("right", "A", "C"), step("side", "B", "E")]


def test_order_makers_and_what_is_needed() -> None:
    plan = make_plan(DIAMOND, ["A"], ["D", "E"])
    assert plan.makers == {"A": CALLER, "B": 1, "C": 2, "D": 0, "E": 3}
    assert sorted(plan.order) == [0, 1, 2, 3]
    assert max(plan.order.index(1), plan.order.index(2)) < plan.order.index(0)
    assert plan.order.index(1) < plan.order.index(3)
    assert plan.needed(["E"]) == {1, 3}
    assert plan.needed(["D"]) == {0, 1, 2}
    assert plan.needed([]) == set()
    assert (plan.origin("A"), plan.origin("D")) == ("the caller", "step 1 (model 'last')")


def test_what_nobody_takes_may_be_made() -> None:
    assert make_plan([step("m", "A", "B C")], ["A"], ["B"]).makers["C"] == 0


@pytest.mark.parametrize(
    ("steps", "inputs", "outputs", "reason"),
    [
        ([], ["A"], ["B"], "a pipeline needs at least one [[step]], got none"),
        ([step("m", "A", "B")], ["A"], [], "a pipeline needs at least one [output.NAME], got none"),
        ([step("m", "", "B")], [], ["B"], "step 1 (model 'm') inputs: wanted at least one, got none"),
        ([step("m", "A", "")], ["A"], ["A"], "step 1 (model 'm') outputs: wanted at least one, got none"),
        (
            [step("m", "A X", "B")],
            ["A"],
            ["B"],
            "step 1 (model 'm') inputs.i1: wanted an input of the pipeline or what a step makes ('A', 'B'), got 'X'",
        ),
        ([step("m", "A", "B")], ["A"], ["X"], "[output.X]: no step makes this tensor; the steps make 'B'"),
        ([step("m", "A", "B")], ["A"], ["A"], "[output.A]: no step makes this tensor; the steps make 'B'"),
        ([step("m", "A", "B")], ["A", "X"], ["B"], "[input.X]: no step takes this tensor; the steps take 'A'"),
        (
            [step("m", "A", "B"), step("n", "A", "C B")],
            ["A"],
            ["B"],
            "step 2 (model 'n') outputs.o1: wanted a tensor of its own, got 'B', which is made by step 1 (model 'm') already",
        ),
        ([step("m", "A", "A")], ["A"], ["A"], "step 1 (model 'm') outputs.o0: wanted a tensor of its own, got 'A', which is an input"),
        ([step("m", "A B", "B")], ["A"], ["B"], "steps wait for each other in a circle: step 1 (model 'm') to step 1 (model 'm')"),
        (
            [step("m", "A C", "B"), step("n", "B", "C"), step("o", "A", "D")],
            ["A"],
            ["B"],
            "in a circle: step 1 (model 'm') to step 2 (model 'n') to step 1 (model 'm')",
        ),
    ],
)
def test_refused(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[str], reason: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        make_plan(steps, inputs, outputs)
    assert reason in caught.value.message
    assert caught.value.message.startswith("model.toml: ")
