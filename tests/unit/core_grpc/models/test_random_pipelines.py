"""Random graphs of real models under load: every answer is the graph's, whoever leaves, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from core_grpc.models.model import Model
from core_grpc.pipelines.step import Step
from core_grpc.types import Array, Datatype, InferRequest
from tests.support import models as fixtures
from tests.support.pipelines import write_pipeline
from tests.support.serving import Served, serving

ONE = (Datatype.FP32, ("batch", 2))
MODELS: Mapping[str, tuple[str, Callable[..., Array]]] = {
    "add": ("Add", lambda a, b: a + b),
    "subtract": ("Sub", lambda a, b: a - b),
    "greatest": ("Max", np.maximum),
    "negate": ("Neg", lambda a: -a),
}
"""ONNX operator, and the same in numpy. Exact in FP32 for small whole numbers."""


def write_models(repository: Path) -> None:
    for name, (operator, function) in MODELS.items():
        inputs = ["A"] if name == "negate" else ["A", "B"]
        assert callable(function)
        graph = fixtures.onnx_model([helper.make_node(operator, inputs, ["Y"])], dict.fromkeys(inputs, ONE), {"Y": ONE})
        fixtures.write_onnx(repository, name, graph, "max_batch_size = 4\n[batching]\nmax_queue_delay_ms = 1")


def random_steps(dice: random.Random) -> tuple[list[Step], list[str]]:
    """Up to ten steps, in any order, and some of what they make."""
    tensors, steps = ["IN"], list[Step]()
    for at in range(dice.randint(2, 10)):
        model = dice.choice(list(MODELS))
        names = ["A"] if model == "negate" else ["A", "B"]
        steps.append(Step(model, "", {name: dice.choice(tensors) for name in names}, {"Y": f"t{at}"}))
        tensors.append(f"t{at}")
    # One at least takes what the caller gives: the first has nothing else to take.
    dice.shuffle(steps)
    return steps, dice.sample(tensors[1:], dice.randint(1, min(3, len(tensors) - 1)))


def evaluated(steps: list[Step], given: Array) -> Mapping[str, Array]:
    values = {"IN": given}
    while left := [step for step in steps if step.outputs["Y"] not in values]:
        for step in left:
            if values.keys() >= set(step.inputs.values()):
                values[step.outputs["Y"]] = MODELS[step.model][1](*(values[step.inputs[name]] for name in sorted(step.inputs)))
    return values


async def ask(served: Served, value: Array, rows: int) -> Mapping[str, Array]:
    pipe: Model = served.find("pipe")
    return (await pipe.infer({"IN": value}, rows, InferRequest("pipe", "", {}))).outputs


@pytest.mark.parametrize("max_batch_size", [0, 4])
@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_is_the_graphs(tmp_path: Path, seed: int, max_batch_size: int) -> None:
    dice = random.Random(seed)
    write_models(tmp_path)
    steps, outputs = random_steps(dice)
    declared: dict[str, Any] = dict.fromkeys(outputs)
    write_pipeline(tmp_path, "pipe", steps, inputs={"IN": None}, outputs=declared, config=f"max_batch_size = {max_batch_size}")
    async with serving(tmp_path) as served:
        asked: dict[asyncio.Task[Mapping[str, Array]], Array] = {}
        for at in range(24):
            # Without a batch dimension: none at all, or more rows than the models take at once.
            rows = dice.randint(1, 4) if max_batch_size else dice.randint(0, 9)
            value = np.array([[at * 100 + row, dice.randint(-9, 9)] for row in range(rows)], np.float32).reshape(rows, 2)
            asked[asyncio.create_task(ask(served, value, rows))] = value
        leaving = dice.sample(list(asked), 8)
        for task in leaving:
            for _ in range(dice.randint(0, 6)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for task, value in asked.items():
            assert task in leaving or not task.cancelled()
            if not task.cancelled():
                wanted = evaluated(steps, value)
                for name, got in task.result().items():
                    np.testing.assert_array_equal(got, wanted[name], strict=True)
                assert list(task.result()) == outputs
        for model in served.ready_models():
            assert model.users == 0
        await asyncio.wait_for(served.control.drain(5), 10)
