"""What model.toml says about batches, on real ONNX models: padding, allowed sizes, parts, parameters that must match, priorities."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from core_grpc.errors import InvalidArgument
from core_grpc.types import Array, Datatype, InferRequest
from tests.support import models, python_models
from tests.support.serving import Served, serving

SEQUENCE = (Datatype.FP32, ("batch", "seq"))


def write_sums(repository: Path, config: str) -> None:
    """``sums``: Y [batch, seq] = X + 1, ROWS [batch, 1] = the width that the engine saw, COUNT [batch, 1] = its rows."""
    nodes = [
        helper.make_node("Add", ["X", "one"], ["Y"]),
        helper.make_node("Shape", ["X"], ["rows"], start=0, end=1),
        helper.make_node("Shape", ["X"], ["width"], start=1, end=2),
        helper.make_node("Concat", ["rows", "unit"], ["column"], axis=0),
        helper.make_node("Expand", ["width", "column"], ["WIDTH"]),
        helper.make_node("Expand", ["rows", "column"], ["ROWS"]),
    ]
    initializers = [
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("unit", TensorProto.INT64, [1], [1]),
    ]
    counts = (Datatype.INT64, ("batch", 1))
    model = models.onnx_model(nodes, {"X": SEQUENCE}, {"Y": SEQUENCE, "WIDTH": counts, "ROWS": counts}, initializers)
    models.write_onnx(repository, "sums", model, config)


def ramp(rows: int, width: int, start: float = 0.0) -> Array:
    return (start + np.arange(rows * width, dtype=np.float32)).reshape(rows, width)


async def test_requests_of_different_shape_share_a_batch_and_see_nothing_of_it(tmp_path: Path) -> None:
    write_sums(tmp_path, "max_batch_size = 8\n[batching]\nmax_queue_delay_ms = 50\n[input.X.padding]\nvalue = -1\nsizes = [4, 16]\n")
    async with serving(tmp_path) as registry:
        model = registry.find("sums")
        arrays = [ramp(1, 3), ramp(2, 7, 100), ramp(1, 1, 200), ramp(1, 5, 300)]
        answers = await asyncio.gather(*(model.infer({"X": array}, len(array)) for array in arrays))
        for array, answer in zip(arrays, answers, strict=True):
            np.testing.assert_array_equal(answer.outputs["Y"], array + 1, strict=True)
            assert answer.outputs["Y"].flags.c_contiguous
            assert answer.outputs["WIDTH"].tolist() == [[16]] * len(array)
        assert {answer.batch_rows for answer in answers} == {5}
        (alone,) = [await model.infer({"X": ramp(1, 2)}, 1)]
        assert (alone.outputs["WIDTH"].tolist(), alone.outputs["Y"].shape) == ([[4]], (1, 2))
        with pytest.raises(InvalidArgument, match="input 'X': wanted at most 16 in dimension 1"):
            await model.infer({"X": ramp(1, 17)}, 1)


async def test_the_engine_is_given_the_sizes_that_it_takes(tmp_path: Path) -> None:
    write_sums(tmp_path, "max_batch_size = 8\n[batching]\nallowed_batch_sizes = [2, 8]\n")
    async with serving(tmp_path) as registry:
        model = registry.find("sums")
        for rows, given in ((1, 2), (2, 2), (3, 8), (8, 8)):
            answer = await model.infer({"X": ramp(rows, 2)}, rows)
            assert answer.outputs["ROWS"].tolist() == [[given]] * rows
            np.testing.assert_array_equal(answer.outputs["Y"], ramp(rows, 2) + 1, strict=True)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("[input.X.padding]\nvalue = 'x'\n", r"\[input.X.padding\] value: wanted a value of FP32, got 'x'"),
        ("[input.X.padding]\nsizes = [4, 2]\n", r"sizes: wanted ascending whole numbers above 0"),
        ("[input.X]\ndimension_names = ['batch']\n", r"\[input.X\] dimension_names: wanted 2, one for each dimension, got 1"),
        (
            "[input.X.padding]\n[output.Y]\ndimension_names = ['batch', '']\n",
            r"\[output.Y\] dimension_names: wanted a name for the variable dimension 1: .*\(seq\)",
        ),
        ("[batching]\nallowed_batch_sizes = [2, 4]\n", "allowed_batch_sizes: wanted the largest to be max_batch_size 8, got 4"),
        ("[batching]\npreferred_batch_sizes = [9]\n", "preferred_batch_sizes: wanted at most max_batch_size 8, got 9"),
        ("[batching]\npreferred_batch_sizes = [4, 4]\n", "preferred_batch_sizes: wanted ascending whole numbers"),
        ("[queue]\npriority_levels = 2\n[queue.priority.3]\n", r"\[queue.priority.3\]: wanted a priority from 1 to priority_levels 2"),
        ("[queue]\ntimeout_action = 'drop'\n", r"\[queue\] timeout_action: wanted one of reject, delay"),
        ("[queue]\ndefault_priority = 2\n", r"\[queue\] default_priority: wanted a whole number from 0 to 0, got 2"),
    ],
)
async def test_what_does_not_go_together_is_refused_by_name(tmp_path: Path, config: str, reason: str) -> None:
    write_sums(tmp_path, "max_batch_size = 8\n" + config)
    async with serving(tmp_path) as registry:
        (entry,) = registry.entries()
        assert registry.find_reason(entry.name, reason)


async def test_batches_of_a_model_without_a_batch_dimension_are_refused(tmp_path: Path) -> None:
    write_sums(tmp_path, "max_batch_size = 0\n[batching]\nsplit_large_requests = true\n")
    async with serving(tmp_path) as registry:
        assert registry.find_reason("sums", "split_large_requests: wanted none, because the model has no batch dimension")


async def test_a_request_above_the_maximum_runs_in_parts_where_that_is_wanted(tmp_path: Path) -> None:
    write_sums(tmp_path, "max_batch_size = 8\n[batching]\nsplit_large_requests = true\n")
    async with serving(tmp_path) as registry:
        model = registry.find("sums")
        answer = await model.infer({"X": ramp(100, 3)}, 100)
        np.testing.assert_array_equal(answer.outputs["Y"], ramp(100, 3) + 1, strict=True)
        assert answer.outputs["ROWS"].tolist() == [[8]] * 96 + [[4]] * 4
        assert model.statistics.execution_count == 13


async def test_a_part_that_fails_fails_the_request_and_nobody_else(tmp_path: Path) -> None:
    models.write_gather(tmp_path, "[batching]\nsplit_large_requests = true\n")
    async with serving(tmp_path) as registry:
        model = registry.find("gather")
        indices = np.arange(30, dtype=np.int64).reshape(30, 1) % 10
        bad = indices.copy()
        bad[17] = 99
        answers = await asyncio.gather(
            model.infer({"I": indices}, 30), model.infer({"I": bad}, 30), model.infer({"I": indices[:3]}, 3), return_exceptions=True
        )
        assert isinstance(answers[1], InvalidArgument)
        for answer, wanted in ((answers[0], indices), (answers[2], indices[:3])):
            assert not isinstance(answer, BaseException)
            np.testing.assert_array_equal(answer.outputs["Y"], wanted * 10.0)
        await model.drain()


SEEN = """
    class Model:
        def execute(self, requests):
            seen = sorted(str(request.parameters.get("language")) for request in requests)
            return [{"Y": [",".join(seen)]} for _ in requests]
"""


async def test_only_requests_whose_parameters_match_share_a_batch(tmp_path: Path) -> None:
    config = 'max_batch_size = 8\n[batching]\nmax_queue_delay_ms = 20\nmatch_parameters = ["language"]\n'
    text: dict[str, tuple[str, list[int]]] = {"T": ("BYTES", [-1])}
    python_models.write_python_model(tmp_path, "seen", SEEN, inputs=text, outputs={"Y": ("BYTES", [-1])}, config=config)
    async with serving(tmp_path) as registry:
        languages: list[bool | int | float | str] = ["en", "de", "en", 1, True, "de", 1.0]
        seen = await asyncio.gather(*(_seen(registry, language) for language in languages))
        assert seen == ["en,en", "de,de", "en,en", "1", "True", "de,de", "1.0"]


async def _seen(registry: Served, language: bool | int | float | str) -> str:
    request = InferRequest("seen", "", {}, parameters={"language": language, "other": id(object())})
    execution = await registry.find("seen").infer({"T": np.array([b""], dtype=object)}, 1, request)
    text: bytes = execution.outputs["Y"][0]
    return text.decode()


async def test_priorities_of_model_toml_reach_the_queue(tmp_path: Path) -> None:
    models.write_slow_fp32(tmp_path, "max_batch_size = 1\n[queue]\npriority_levels = 2\n", trips=20)
    async with serving(tmp_path) as registry:
        model = registry.find("slow_fp32")
        ended: list[int] = []

        async def ask(priority: int) -> None:
            request = InferRequest("slow_fp32", "", {}, parameters={"priority": priority})
            await model.infer({"X": ramp(1, 1)}, 1, request)
            ended.append(priority)

        await asyncio.gather(*(ask(priority) for priority in (2, 2, 2, 1, 0)))
        assert ended == [1, 0, 2, 2, 2], "without a priority it is in the middle: 1 of 2"
        with pytest.raises(InvalidArgument, match="parameter 'priority'"):
            await ask(3)


RAGGED = """
max_batch_size = 8
[input.X]
datatype = "FP32"
shape = [-1, -1]
ragged = true
[batching]
max_queue_delay_ms = 50
[[batching.batch_input]]
kind = "accumulated_element_count_with_zero"
target = ["ENDS"]
source = "X"
[[batching.batch_input]]
kind = "item_shape"
target = ["SHAPES"]
source = "X"
[[batching.batch_output]]
kind = "scatter_with_input_shape"
target = ["Y"]
source = "X"
"""


def write_ragged(repository: Path, config: str = RAGGED) -> None:
    """``ragged``: X [n] and ENDS [rows + 1] -> SUM [rows] of each row's elements, Y [n] = X + 1; LENGTH [rows, 1] = SHAPES."""
    nodes = [
        helper.make_node("CumSum", ["X", "axis"], ["sums"]),
        helper.make_node("Concat", ["zero", "sums"], ["all"], axis=0),
        helper.make_node("Gather", ["all", "ENDS"], ["at_ends"]),
        helper.make_node("Slice", ["at_ends", "from_one", "far"], ["upper"]),
        helper.make_node("Slice", ["at_ends", "from_zero", "last"], ["lower"]),
        helper.make_node("Sub", ["upper", "lower"], ["SUM"]),
        helper.make_node("Add", ["X", "one"], ["Y"]),
        helper.make_node("Identity", ["SHAPES"], ["LENGTH"]),
    ]
    integers = {"from_one": 1, "far": 1 << 40, "from_zero": 0, "last": -1}
    initializers = [
        helper.make_tensor("axis", TensorProto.INT64, [], [0]),
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        *(helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in integers.items()),
    ]
    flat = (Datatype.FP32, ("n",))
    inputs = {"X": flat, "ENDS": (Datatype.INT64, ("ends",)), "SHAPES": (Datatype.INT32, ("rows", 1))}
    outputs = {"SUM": (Datatype.FP32, ("rows",)), "Y": flat, "LENGTH": (Datatype.INT32, ("rows", 1))}
    models.write_onnx(repository, "ragged", models.onnx_model(nodes, inputs, outputs, initializers), config)


async def test_ragged_requests_lie_one_behind_the_other(tmp_path: Path) -> None:
    write_ragged(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find("ragged")
        assert [(item.name, item.shape) for item in model.spec.inputs] == [("X", (-1, -1))]
        assert [(item.name, item.shape) for item in model.spec.outputs] == [("SUM", (-1,)), ("Y", (-1, -1)), ("LENGTH", (-1, 1))]
        arrays = [ramp(1, 3), ramp(2, 5, 100), ramp(1, 1, 200), ramp(1, 0), ramp(1, 4, 300)]
        answers = await asyncio.gather(*(model.infer({"X": array}, len(array)) for array in arrays))
        for array, answer in zip(arrays, answers, strict=True):
            np.testing.assert_array_equal(answer.outputs["Y"], array + 1, strict=True)
            np.testing.assert_array_equal(answer.outputs["SUM"], array.sum(axis=1), strict=True)
            assert answer.outputs["LENGTH"].tolist() == [[array.shape[1]]] * len(array)
        assert {answer.batch_rows for answer in answers} == {6}


@pytest.mark.parametrize(
    ("wanted", "instead", "reason"),
    [
        ("shape = [-1, -1]", "shape = [-1]", r"\[input.X\] shape: wanted the shape that requests have, .*got \[-1\]"),
        ("max_batch_size = 8", "max_batch_size = 0", "max_batch_size: wanted above 0, because an input is ragged"),
        ("ragged = true", "", r"\[\[batching.batch_input\]\]: wanted none, because no input is ragged"),
        ('target = ["ENDS"]', 'target = ["END"]', r"target: wanted an input that has no table of its own \(ENDS, SHAPES\), got 'END'"),
        ('target = ["Y"]', 'target = ["Z"]', r"\[\[batching.batch_output\]\] target: wanted one of SUM, Y, LENGTH, got 'Z'"),
        ('source = "X"', 'source = "W"', r"source: wanted a ragged input \(X\), got 'W'"),
        ('kind = "item_shape"', 'kind = "shape"', r"\[\[batching.batch_input\]\] kind: wanted one of element_count, .*got 'shape'"),
    ],
)
async def test_ragged_declarations_that_do_not_hold(tmp_path: Path, wanted: str, instead: str, reason: str) -> None:
    write_ragged(tmp_path, RAGGED.replace(wanted, instead))
    async with serving(tmp_path) as registry:
        assert registry.find_reason("ragged", reason)
