"""Pipelines of real models: values, batches, errors, callers who leave, and what becomes of a pipeline when its models come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from core_grpc.errors import (
    BackendFailed,
    DeadlineExpired,
    InvalidArgument,
    InvalidTensor,
    ModelLoadFailed,
    ModelNotReady,
    QueueFull,
)
from core_grpc.lifecycle import ModelState
from core_grpc.models.model import Execution, Model
from core_grpc.models.pipeline_model import PipelineModel
from core_grpc.models.pipeline_steps import StepTimes
from core_grpc.pipelines.step import Step
from core_grpc.settings import ModelsSettings
from core_grpc.types import Array, Datatype, InferRequest, RequestedOutput
from tests.support import models as fixtures
from tests.support.pipelines import write_pipeline
from tests.support.python_models import write_python_model
from tests.support.serving import Served, serving

ROWS = {"X": ("FP32", [-1, 1])}
QUIET = "[warmup]\ncount = 0\n"


def write_affine(repository: Path, name: str, factor: float, offset: float, config: str = "") -> None:
    """Y = factor X + offset, FP32 [batch, 1]."""
    constants = [helper.make_tensor(key, 1, [1, 1], [value]) for key, value in (("M", factor), ("C", offset))]
    nodes = [helper.make_node("Mul", ["X", "M"], ["P"]), helper.make_node("Add", ["P", "C"], ["Y"])]
    shape = (Datatype.FP32, ("batch", 1))
    fixtures.write_onnx(repository, name, fixtures.onnx_model(nodes, {"X": shape}, {"Y": shape}, constants), config)


def write_sum(repository: Path, name: str = "sum") -> None:
    """Y = A + B, FP32 [batch, 1]."""
    shape = (Datatype.FP32, ("batch", 1))
    node = helper.make_node("Add", ["A", "B"], ["Y"])
    fixtures.write_onnx(repository, name, fixtures.onnx_model([node], {"A": shape, "B": shape}, {"Y": shape}))


def through(*models: str, first: str = "IN", last: str = "OUT") -> list[Step]:
    """A chain of models that have X and Y."""
    tensors = [first, *(f"T{at}" for at in range(1, len(models))), last]
    return [Step(model, "", {"X": tensors[at]}, {"Y": tensors[at + 1]}) for at, model in enumerate(models)]


def write_chain(repository: Path, name: str, *models: str, config: str = "max_batch_size = 8") -> None:
    """IN through the models to OUT, FP32 [batch, 1]."""
    write_pipeline(repository, name, through(*models), inputs={"IN": ("FP32", [-1, 1])}, outputs={"OUT": ("FP32", [-1, 1])}, config=config)


def column(*values: float) -> Mapping[str, Array]:
    return {"IN": np.array(values, np.float32).reshape(-1, 1)}


async def run(model: Model, inputs: Mapping[str, Array], **request: Any) -> Execution:
    rows = next(iter(inputs.values())).shape[0]
    model.users += 1
    try:
        return await model.infer(inputs, rows, InferRequest(model.spec.name, "", {}, **request))
    finally:
        model.release()


def reason_of(served: Served, name: str) -> str:
    return next(entry.reason for entry in served.entries() if entry.name == name)


def write_recorder(repository: Path, name: str = "tell") -> None:
    """Answers with what it was told: the request's id, its parameter ``mark``, and its rows."""
    code = """
        import numpy as np

        class Model:
            def execute(self, requests):
                return [{"TOLD": self.told(request)} for request in requests]

            def told(self, request):
                text = f"{request.id} {request.parameters.get('mark')} {request.deadline is not None}"
                return np.full((len(request.inputs["X"]), 1), text.encode(), dtype=object)
    """
    tensors: dict[str, Any] = {"inputs": {"X": ("FP32", [-1, 1])}, "outputs": {"TOLD": ("BYTES", [-1, 1])}}
    write_python_model(repository, name, code, **tensors, config="max_batch_size = 8")


async def test_values_spec_and_statistics(tmp_path: Path) -> None:
    write_affine(tmp_path, "twice", 2, 0)
    write_affine(tmp_path, "plus", 1, 10)
    write_sum(tmp_path)
    steps = [
        Step("sum", "", {"A": "doubled", "B": "more"}, {"Y": "OUT"}),
        Step("twice", "1", {"X": "IN"}, {"Y": "doubled"}),
        Step("plus", "", {"X": "IN"}, {"Y": "more"}),
    ]
    outputs = {"OUT": ("FP32", [-1, 1]), "doubled": None}
    write_pipeline(tmp_path, "a_diamond", steps, inputs={"IN": None}, outputs=outputs, config='max_batch_size = 4\ndescription = "both"')
    async with serving(tmp_path) as served:
        model = served.find("a_diamond")
        assert (model.spec.platform, model.spec.max_batch_size, model.spec.description) == ("ensemble", 4, "both")
        assert [(item.name, item.datatype, item.shape) for item in model.spec.inputs] == [("IN", Datatype.FP32, (-1, 1))]
        assert [item.name for item in model.spec.outputs] == ["OUT", "doubled"]
        execution = await run(model, column(1, 5))
        assert execution.outputs["OUT"].tolist() == [[13], [25]]
        assert execution.outputs["doubled"].tolist() == [[2], [10]]
        assert (execution.batch_rows, model.statistics.execution_count) == (2, 1)
        for name in ("twice", "plus", "sum"):
            statistics = served.find(name).statistics
            assert (statistics.success.count, statistics.inference_count, statistics.execution_count) == (1, 2, 1)
        only = await run(model, column(1), outputs=(RequestedOutput("doubled"),))
        assert list(only.outputs) == ["doubled"]
        assert served.find("sum").statistics.success.count == 1, "what the wanted outputs do not need does not run"


@pytest.mark.parametrize(
    ("steps", "busy_s"),
    [([], 0), ([(3, 2)], 2), ([(3, 2), (4, 2)], 3), ([(6, 1), (7, 6)], 6), ([(2, 1), (5, 1)], 2)],
)
def test_compute_is_the_time_in_which_a_step_computes(steps: list[tuple[float, float]], busy_s: float) -> None:
    times = StepTimes()
    for ended, compute_s in steps:
        times.add(ended, compute_s)
    assert times.busy_s() == busy_s


async def test_nothing_is_copied_between_steps(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        fixtures.write_identity(tmp_path, name, ROWS, f"max_batch_size = 8\n{QUIET}")
    write_chain(tmp_path, "pipe", "one", "two", "three")
    async with serving(tmp_path) as served:
        inputs = column(1, 2, 3)
        assert (await run(served.find("pipe"), inputs)).outputs["OUT"] is inputs["IN"]


async def test_requests_of_several_pipelines_share_batches_in_every_step(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fixtures.write_identity(tmp_path, name, ROWS, f"max_batch_size = 8\n{QUIET}[batching]\nmax_queue_delay_ms = 10000")
    write_chain(tmp_path, "pipe", "one", "two")
    write_chain(tmp_path, "other", "two", "one")
    async with serving(tmp_path) as served:
        asked = [run(served.find(("pipe", "other")[at % 2]), column(at)) for at in range(16)]
        executions = await asyncio.gather(*asked)
        assert [float(item.outputs["OUT"][0, 0]) for item in executions] == list(range(16))
        for name in ("one", "two"):
            assert list(served.find(name).statistics.batches) == [8], "full batches, because each waits until there is one"


async def test_without_a_batch_dimension_rows_are_those_of_the_tensors(tmp_path: Path) -> None:
    """More than a model takes at once go in parts, all at once; none do not go at all."""
    write_affine(tmp_path, "plus", 1, 1, "max_batch_size = 4")
    write_affine(tmp_path, "twice", 2, 0, "max_batch_size = 8")
    repeat = """
        import numpy as np

        class Model:
            def execute(self, requests):
                return [{"Y": np.arange(int(request.inputs["N"][0]), dtype=np.float32).reshape(-1, 1)} for request in requests]
    """
    tensors: dict[str, Any] = {"inputs": {"N": ("INT32", [1])}, "outputs": {"Y": ("FP32", [-1, 1])}}
    write_python_model(tmp_path, "count", repeat, **tensors, config="max_batch_size = 0")
    steps = [Step("count", "", {"N": "N"}, {"Y": "IN"}), *through("plus", "twice")]
    write_pipeline(tmp_path, "pipe", steps, inputs={"N": ("INT32", [1])}, outputs={"OUT": ("FP32", [-1, 1])})
    async with serving(tmp_path) as served:
        pipe = served.find("pipe")
        assert pipe.spec.max_batch_size == 0
        for rows in (10, 0, 1):
            outputs = (await run(pipe, {"N": np.array([rows], np.int32)})).outputs
            np.testing.assert_array_equal(outputs["OUT"], (np.arange(rows, dtype=np.float32).reshape(-1, 1) + 1) * 2, strict=True)
        statistics = served.find("plus").statistics
        assert (statistics.inference_count, statistics.success.count) == (11, 4), "4 + 4 + 2 rows, none, and 1"


async def test_parts_of_a_request_that_is_cut_fail_together(tmp_path: Path) -> None:
    fixtures.write_identity(tmp_path, "one", ROWS, f"max_batch_size = 4\n{QUIET}[identity]\nfail_value = 99")
    write_chain(tmp_path, "pipe", "one", config="max_batch_size = 0")
    async with serving(tmp_path) as served:
        pipe = served.find("pipe")
        with pytest.raises(BackendFailed, match=r"step 1 \(model 'one'\): scripted failure"):
            await run(pipe, column(*range(91, 111)))
        assert served.find("one").users == 0
        assert (await run(pipe, column(*range(9)))).outputs["OUT"].shape == (9, 1)


async def test_rows_that_differ_are_refused_by_the_steps_model(tmp_path: Path) -> None:
    write_sum(tmp_path)
    inputs = {"A": ("FP32", [-1, 1]), "B": ("FP32", [-1, 1])}
    write_pipeline(tmp_path, "pipe", [Step("sum", "", {"A": "A", "B": "B"}, {"Y": "OUT"})], inputs=inputs, outputs={"OUT": None})
    async with serving(tmp_path) as served:
        for first, second in ((2, 3), (0, 1), (9, 10)):
            with pytest.raises(
                InvalidTensor, match=f"input 'B' for model 'sum' has batch {second}, the inputs before it have batch {first}"
            ):
                await run(served.find("pipe"), {"A": np.zeros((first, 1), np.float32), "B": np.zeros((second, 1), np.float32)})


async def test_id_parameters_and_deadline_travel(tmp_path: Path) -> None:
    write_affine(tmp_path, "plus", 1, 1)
    write_recorder(tmp_path)
    steps = [*through("plus", last="T"), Step("tell", "", {"X": "T"}, {"TOLD": "TOLD"})]
    write_pipeline(tmp_path, "pipe", steps, inputs={"IN": None}, outputs={"TOLD": None}, config="max_batch_size = 8")
    async with serving(tmp_path) as served:
        execution = await run(served.find("pipe"), column(1), id="r-1", parameters={"mark": "x"}, deadline=time.monotonic() + 60)
        assert execution.outputs["TOLD"].tolist() == [[b"r-1 x True"]]


async def test_the_deadline_bounds_the_wait_in_every_step(tmp_path: Path) -> None:
    write_affine(tmp_path, "plus", 1, 1)
    fixtures.write_identity(tmp_path, "busy", ROWS, f"max_batch_size = 1\n{QUIET}[identity]\ndelay_ms = 300")
    write_chain(tmp_path, "pipe", "plus", "busy", config="max_batch_size = 1")
    async with serving(tmp_path) as served:
        busy = served.find("busy")
        direct = asyncio.create_task(run(busy, {"X": column(1)["IN"]}))
        await stepped(lambda: busy.users == 1 and not pending(busy))
        with pytest.raises(DeadlineExpired, match=r"step 2 \(model 'busy'\): the deadline passed"):
            await run(served.find("pipe"), column(1), deadline=time.monotonic() + 0.1)
        assert pending(busy) == 0
        assert not direct.done()
        await direct


async def test_a_sequence_goes_on_in_a_step(tmp_path: Path) -> None:
    """Its parameters travel as all others do."""
    one = (Datatype.FP32, ("batch", 1))
    nodes = [helper.make_node("Add", ["X", "START"], ["S"]), helper.make_node("Mul", ["S", "READY"], ["Y"])]
    model = fixtures.onnx_model(nodes, {"X": one, "START": one, "READY": one}, {"Y": one})
    config = 'max_batch_size = 8\n[sequence]\nmax_idle_ms = 5000\nstart = "START"\nready = "READY"'
    fixtures.write_onnx(tmp_path, "sequence", model, config)
    write_affine(tmp_path, "plus", 1, 10)
    write_chain(tmp_path, "pipe", "plus", "sequence")
    async with serving(tmp_path) as served:
        got = []
        for place in range(3):
            flags = {"sequence_id": 7, "sequence_start": place == 0, "sequence_end": place == 2}
            got.append(float((await run(served.find("pipe"), column(place), parameters=flags)).outputs["OUT"][0, 0]))
        assert got == [11, 11, 12]
        with pytest.raises(InvalidArgument, match=r"step 2 \(model 'sequence'\): .*START"):
            await run(served.find("pipe"), column(1), parameters={"sequence_id": 8})


async def test_steps_are_told_from_callers(tmp_path: Path) -> None:
    fixtures.write_identity(tmp_path, "one", ROWS, f"max_batch_size = 8\n{QUIET}")
    write_chain(tmp_path, "pipe", "one")
    async with serving(tmp_path) as served:
        model, seen = served.find("one"), list[InferRequest | None]()
        inner = model.infer

        def watched(inputs: Mapping[str, Array], rows: int, request: InferRequest | None = None) -> Any:
            seen.append(request)
            return inner(inputs, rows, request)

        model.infer = watched  # type: ignore[method-assign]
        await run(served.find("pipe"), column(1), id="7")
        (request,) = seen
        assert request is not None
        assert (request.model_name, request.model_version, request.id, request.pipeline) == ("one", "1", "7", "pipe")


@pytest.mark.parametrize("kind", ["fails", "expires"])
async def test_errors_name_the_step_and_keep_their_status(tmp_path: Path, kind: str) -> None:
    fixtures.write_identity(tmp_path, "one", ROWS, f"max_batch_size = 8\n{QUIET}[identity]\nfail_value = 99")
    write_affine(tmp_path, "plus", 1, 1)
    write_chain(tmp_path, "inner", "one")
    steps = [Step("plus", "", {"X": "IN"}, {"Y": "T"}), Step("inner", "", {"IN": "T"}, {"OUT": "OUT"})]
    write_pipeline(tmp_path, "pipe", steps, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 8")
    async with serving(tmp_path) as served:
        pipe = served.find("pipe")
        if kind == "fails":
            with pytest.raises(BackendFailed) as failed:
                await run(pipe, column(98))
            assert failed.value.message == "step 2 (model 'inner'): step 1 (model 'one'): scripted failure"
            assert served.find("one").statistics.fail.count == served.find("inner").statistics.fail.count == 1
            assert (await run(pipe, column(1))).outputs["OUT"].tolist() == [[2]]
        else:
            with pytest.raises(DeadlineExpired, match=r"step 1 \(model 'plus'\): the deadline passed"):
                await run(pipe, column(1), deadline=time.monotonic() - 1)


async def test_what_a_step_makes_is_held_against_the_next(tmp_path: Path) -> None:
    """Shapes that are open when the pipeline is loaded are looked at in each request."""
    fixtures.write_identity(tmp_path, "open", {"X": ("FP32", [-1, -1])}, "max_batch_size = 8")
    write_affine(tmp_path, "plus", 1, 1)
    pipe = through("open", "plus")
    write_pipeline(tmp_path, "pipe", pipe, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 8")
    async with serving(tmp_path) as served:
        assert (await run(served.find("pipe"), column(1))).outputs["OUT"].tolist() == [[2]]
        with pytest.raises(
            InvalidTensor, match=r"step 2 \(model 'plus'\): unexpected shape for input 'X' for model 'plus'. Expected \[-1,1\], got \[1,2\]"
        ):
            await run(served.find("pipe"), {"IN": np.zeros((1, 2), np.float32)})


async def test_optional_inputs_that_nobody_gives(tmp_path: Path) -> None:
    """WIRE-19, through a pipeline: an optional input of a step is one of the pipeline."""
    fixtures.write_opt(tmp_path)
    steps = [Step("opt", "", {"A": "A", "B": "B"}, {"Y": "Y"})]
    write_pipeline(tmp_path, "pipe", steps, inputs={"A": None, "B": None}, outputs={"Y": None})
    async with serving(tmp_path) as served:
        pipe, ones = served.find("pipe"), np.ones(4, np.float32)
        assert [item.optional for item in pipe.spec.inputs] == [False, True]
        assert (await run(pipe, {"A": ones, "B": ones})).outputs["Y"][0] == 2
        assert (await run(pipe, {"A": ones})).outputs["Y"][0] == 101


async def stepped(condition: Callable[[], bool]) -> None:
    """Lets the others run until ``condition`` holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (models tell nobody)
            await asyncio.sleep(0.001)


def pending(model: Model) -> int:
    return int(model._dispatcher.pending)  # type: ignore[attr-defined]


async def test_a_caller_who_leaves_takes_the_steps_along(tmp_path: Path) -> None:
    """Requests of steps that wait leave their queues, on every branch; what was to follow is not begun."""
    for name in ("left", "right", "after"):
        fixtures.write_identity(tmp_path, name, ROWS, f"max_batch_size = 1\n{QUIET}[identity]\ndelay_ms = 200")
    write_sum(tmp_path)
    steps = [*through("left", last="L"), *through("right", "after", last="R"), Step("sum", "", {"A": "L", "B": "R"}, {"Y": "OUT"})]
    write_pipeline(tmp_path, "pipe", steps, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 1")
    async with serving(tmp_path) as served:
        pipe, left, right = (served.find(name) for name in ("pipe", "left", "right"))
        first = asyncio.create_task(run(pipe, column(1)))
        await stepped(lambda: left.users == right.users == 1 and not pending(left) and not pending(right))
        second = asyncio.create_task(run(pipe, column(2)))
        await stepped(lambda: pending(left) == pending(right) == 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (pending(left), pending(right), left.users, right.users) == (0, 0, 1, 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert left.users == right.users == 0
        await asyncio.wait_for(pipe.drain(), 5)
        await asyncio.gather(left.drain(), right.drain())
        assert served.find("after").statistics.execution_count == 0
        assert left.statistics.fail.count == 2


async def test_a_step_that_fails_cancels_the_steps_beside_it(tmp_path: Path) -> None:
    slow = f"max_batch_size = 1\n{QUIET}[identity]\ndelay_ms = 200"
    fixtures.write_identity(tmp_path, "slow", ROWS, slow)
    fixtures.write_identity(tmp_path, "fails", ROWS, f"max_batch_size = 1\n{QUIET}[identity]\nfail_value = 1")
    write_sum(tmp_path)
    steps = [*through("slow", last="L"), *through("fails", last="R"), Step("sum", "", {"A": "L", "B": "R"}, {"Y": "OUT"})]
    write_pipeline(tmp_path, "pipe", steps, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 1")
    async with serving(tmp_path) as served:
        with pytest.raises(BackendFailed, match=r"step 2 \(model 'fails'\): scripted failure"):
            await run(served.find("pipe"), column(1))
        assert (served.find("slow").users, served.find("slow").statistics.fail.count) == (0, 1)


async def test_requests_under_way_are_bounded(tmp_path: Path) -> None:
    fixtures.write_identity(tmp_path, "slow", ROWS, f"max_batch_size = 4\n{QUIET}[identity]\ndelay_ms = 100")
    write_chain(tmp_path, "pipe", "slow", config="max_batch_size = 4\n[queue]\nmax_rows = 4")
    async with serving(tmp_path) as served:
        pipe = served.find("pipe")
        first = asyncio.create_task(run(pipe, column(1, 2, 3)))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="model 'pipe' has 3 rows under way: the limit is \\[queue\\] max_rows = 4"):
            await run(pipe, column(1, 2))
        await run(pipe, column(1))
        await first
        await run(pipe, column(1, 2, 3, 4))


REFUSED: Mapping[str, tuple[str, str]] = {
    "no_model": (
        "[[step]]\nmodel = 'nope'\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}",
        "step 1 (model 'nope'): Request for unknown model: 'nope'",
    ),
    "no_version": ("[[step]]\nmodel = 'plus'\nversion = 9\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}", "'plus' version '9' is not found"),
    "broken": (
        "[[step]]\nmodel = 'badload'\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}",
        "step 1 (model 'badload'): 'badload' has no available versions: UNAVAILABLE",
    ),
    "decoupled": (
        "[[step]]\nmodel = 'stream'\ninputs = {IN = 'IN'}\noutputs = {OUT = 'OUT'}",
        "step 1 (model 'stream'): wanted a model that answers once",
    ),
    "itself": (
        "[[step]]\nmodel = 'itself'\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}",
        "step 1 (model 'itself'): the pipeline would be a step of itself",
    ),
    "two_brackets": ("[step]\nmodel = 'plus'", "model.toml step: wanted [[step]], with two brackets, for each step, got a table"),
    "unnamed": ("[[step]]\ninputs = {X = 'IN'}", "model.toml: [[step]] 1 model: wanted the name of a model, got nothing"),
    "unknown_key": (
        "[[step]]\nmodel = 'plus'\nmodell = 1",
        "model.toml: [[step]] 1 modell: no such key; it has inputs, model, outputs, version",
    ),
    "number": ("[[step]]\nmodel = 'plus'\ninputs = {X = 1}", "model.toml: [[step]] 1: [inputs] X: wanted a text of one line, got 1"),
    "version": ("[[step]]\nmodel = 'plus'\nversion = 'new'", "model.toml: [[step]] 1 version: wanted a whole number from 0"),
    "engine": (
        "[instances]\ncount = 2\n[[step]]\nmodel = 'plus'\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}",
        "[instances]: a pipeline has no engine",
    ),
    "reshape": (
        "[[step]]\nmodel = 'plus'\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}\n[input.MORE]\nreshape = [-1]\n",
        "reshape: a pipeline has no engine",
    ),
    "share": ("fair_share = {weight = 2}\n[[step]]\nmodel = 'plus'", "[fair_share]: a pipeline has no engine"),
    "backend": (
        "backend = 'identity'\n[[step]]\nmodel = 'plus'\ninputs = {X = 'IN'}\noutputs = {Y = 'OUT'}",
        '[[step]]: wanted backend = "pipeline", got identity',
    ),
    "circle_a": (
        "[[step]]\nmodel = 'circle_b'\ninputs = {IN = 'IN'}\noutputs = {OUT = 'OUT'}",
        "would be a step of itself, by step 1 (model 'circle_b'), step 1 (model 'circle_a')",
    ),
    "circle_b": (
        "[[step]]\nmodel = 'circle_a'\ninputs = {IN = 'IN'}\noutputs = {OUT = 'OUT'}",
        "would be a step of itself, by step 1 (model 'circle_a'), step 1 (model 'circle_b')",
    ),
    "needs_a_circle": (
        "[[step]]\nmodel = 'circle_a'\ninputs = {IN = 'IN'}\noutputs = {OUT = 'OUT'}",
        "step 1 (model 'circle_a'): 'circle_a' has no available versions: UNAVAILABLE",
    ),
}


async def test_what_cannot_be_joined_is_refused_in_one_line(tmp_path: Path) -> None:
    write_affine(tmp_path, "plus", 1, 1)
    fixtures.write_badload(tmp_path)
    stream: dict[str, Any] = {"inputs": {"IN": ("FP32", [-1, 1])}, "outputs": {"OUT": ("FP32", [-1, 1])}}
    write_python_model(
        tmp_path,
        "stream",
        "class Model:\n    async def execute(self, request):\n        yield {}",
        **stream,
        config="[python]\ndecoupled = true",
    )
    for name, (text, _) in REFUSED.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "model.toml").write_text(f"{text}\n[input.IN]\n[output.OUT]\n", encoding="utf-8")
    async with serving(tmp_path) as served:
        reasons = {name: reason_of(served, name) for name in REFUSED}
    wrong = {name: reason for name, reason in reasons.items() if REFUSED[name][1] not in reason or "\n" in reason}
    assert not wrong


async def test_a_pipeline_is_loaded_after_its_models_whatever_their_names(tmp_path: Path) -> None:
    fixtures.write_identity(tmp_path, "zz", ROWS, f"max_batch_size = 8\n{QUIET}")
    write_chain(tmp_path, "b_inner", "zz")
    nested = [Step("b_inner", "", {"IN": "IN"}, {"OUT": "OUT"})]
    write_pipeline(tmp_path, "a_outer", nested, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 8")
    async with serving(tmp_path) as served:
        assert {entry.state for entry in served.entries()} == {ModelState.READY}
        assert (await run(served.find("a_outer"), column(3))).outputs["OUT"].tolist() == [[3]]


async def test_what_the_setting_models_load_names_comes_with_its_steps(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fixtures.write_identity(tmp_path, name, ROWS, f"max_batch_size = 8\n{QUIET}")
    write_chain(tmp_path, "inner", "one")
    steps = [Step("inner", "", {"IN": "IN"}, {"OUT": "OUT"})]
    write_pipeline(tmp_path, "outer", steps, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 8")
    async with serving(tmp_path, ModelsSettings(load="outer")) as served:
        assert {model.spec.name for model in served.ready_models()} == {"one", "inner", "outer"}


async def test_the_live_version_of_a_step_answers(tmp_path: Path) -> None:
    write_affine(tmp_path, "plus", 1, 1)
    write_chain(tmp_path, "pipe", "plus")
    async with serving(tmp_path) as served:
        pipe = served.find("pipe")
        assert (await run(pipe, column(0))).outputs["OUT"].tolist() == [[1]]
        fixtures.write_onnx(
            tmp_path,
            "plus",
            fixtures.onnx_model(
                [helper.make_node("Identity", ["X"], ["Y"])], {"X": (Datatype.FP32, ("batch", 1))}, {"Y": (Datatype.FP32, ("batch", 1))}
            ),
            version="2",
        )
        await served.control.load("plus")
        assert (await run(pipe, column(0))).outputs["OUT"].tolist() == [[0]]
        pipe.check_ready()
        await served.control.unload("plus")
        with pytest.raises(
            ModelNotReady, match=r"step 1 \(model 'plus'\): Request for unknown model: 'plus' has no available versions: it is unloaded"
        ):
            await run(pipe, column(0))
        with pytest.raises(ModelNotReady, match="'plus'"):
            pipe.check_ready()
        await served.control.load("plus")
        pipe.check_ready()
        assert (await run(pipe, column(0))).outputs["OUT"].tolist() == [[0]]


async def test_loading_a_pipeline_loads_the_models_of_its_steps(tmp_path: Path) -> None:
    """And ``unload_dependents`` unloads them, save for those that another pipeline needs."""
    for name in ("one", "two", "shared"):
        fixtures.write_identity(tmp_path, name, ROWS, f"max_batch_size = 8\n{QUIET}")
    write_chain(tmp_path, "inner", "two", "shared")
    steps = [*through("one", last="T"), Step("inner", "", {"IN": "T"}, {"OUT": "OUT"})]
    write_pipeline(tmp_path, "outer", steps, inputs={"IN": None}, outputs={"OUT": None}, config="max_batch_size = 8")
    write_chain(tmp_path, "other", "shared")
    async with serving(tmp_path) as served:

        def ready() -> set[str]:
            return {model.spec.name for model in served.ready_models()}

        await served.control.unload("outer", with_models_of_steps=True)
        assert ready() == {"shared", "other"}
        await served.control.unload("other")
        assert ready() == {"shared"}
        await served.control.load("outer")
        assert ready() == {"one", "two", "shared", "inner", "outer"}
        assert (await run(served.find("outer"), column(4))).outputs["OUT"].tolist() == [[4]]
        await served.control.unload("outer")
        assert ready() == {"one", "two", "shared", "inner"}


async def test_loading_a_pipeline_that_cannot_be(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        write_chain(tmp_path, "pipe", "nope")
        with pytest.raises(ModelLoadFailed, match=r"failed to load 'pipe', step 1 \(model 'nope'\): the repository has no such model"):
            await served.control.load("pipe")
        for name, other in (("a", "b"), ("b", "a")):
            write_pipeline(tmp_path, name, [Step(other, "", {"IN": "IN"}, {"OUT": "OUT"})], inputs={"IN": None}, outputs={"OUT": None})
        for load in await asyncio.gather(served.control.load("a"), served.control.load("b"), return_exceptions=True):
            assert isinstance(load, ModelLoadFailed)
            assert "pipelines are steps of each other" in load.message
        fixtures.write_badload(tmp_path)
        write_chain(tmp_path, "bad", "badload")
        with pytest.raises(ModelLoadFailed, match="failed to load 'badload'"):
            await served.control.load("bad")


async def test_unloading_lets_requests_finish_and_closing_ends_them(tmp_path: Path) -> None:
    fixtures.write_identity(tmp_path, "slow", ROWS, f"max_batch_size = 8\n{QUIET}[identity]\ndelay_ms = 100")
    write_chain(tmp_path, "pipe", "slow", "slow")
    async with serving(tmp_path) as served:
        pipe = served.find("pipe")
        assert isinstance(pipe, PipelineModel)
        running = asyncio.create_task(run(pipe, column(1)))
        await stepped(lambda: served.find("slow").users == 1)
        await pipe.close()
        with pytest.raises(ModelNotReady, match="the model is being unloaded"):
            await running
        assert served.find("slow").statistics.success.count == 1, "the step that ran is finished, the next one not begun"
        with pytest.raises(ModelNotReady):
            await run(pipe, column(1))


async def test_reloads_of_a_step_under_load_fail_nothing(tmp_path: Path) -> None:
    write_affine(tmp_path, "plus", 1, 1)
    write_affine(tmp_path, "twice", 2, 0)
    write_chain(tmp_path, "pipe", "plus", "twice")
    async with serving(tmp_path) as served:
        is_over = asyncio.Event()
        got: list[float] = []

        async def ask(value: float) -> None:
            while not is_over.is_set():
                outputs = (await run(served.find("pipe"), column(value))).outputs
                got.append(float(outputs["OUT"][0, 0]) - 2 * (value + 1))

        asking = [asyncio.create_task(ask(value)) for value in range(4)]
        for name in ("plus", "twice", "pipe") * 3:
            await served.control.load(name)
        is_over.set()
        await asyncio.gather(*asking)
        assert got
        assert set(got) == {0.0}
