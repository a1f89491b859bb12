"""Answers that are given again: by whom they may be had, what becomes of them when the model goes, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from core_grpc.errors import BackendFailed, DeadlineExpired, GatewayError
from core_grpc.models.response_cache import ModelCache, ResponseCache
from core_grpc.models.statistics import ModelStatistics
from core_grpc.pipelines.step import Step
from core_grpc.rpc.statistics_codec import encode_statistics
from core_grpc.scheduler.dispatcher import Execution
from core_grpc.server import Node
from core_grpc.settings import DrainSettings, ModelsSettings, NodeSettings, ServerSettings
from core_grpc.types import Array, Datatype, InferRequest, RequestedOutput, Tensor
from tests.support.models import onnx_model, write_identity, write_onnx
from tests.support.pipelines import write_pipeline
from tests.support.python_models import ROWS, write_python_model
from tests.support.serving import serving

ENABLED = "[response_cache]\nenable = true\n"
FP32 = (Datatype.FP32, ("batch", "n"))


class FakeModel:
    """Stands in for an engine: each run waits until the test ends it."""

    def __init__(self) -> None:
        self.runs: list[asyncio.Future[Mapping[str, Array]]] = []

    async def infer(self, _inputs: Mapping[str, Array], rows: int, _request: InferRequest | None = None) -> Execution:
        run: asyncio.Future[Mapping[str, Array]] = asyncio.get_running_loop().create_future()
        self.runs.append(run)
        return Execution(await run, 0.0, 0.0, rows)


def cache_of(model: FakeModel, *, parameters_matter: bool = False, max_bytes: int = 1 << 20) -> ModelCache:
    return ResponseCache(max_bytes).for_model(model.infer, ModelStatistics(), parameters_matter=parameters_matter)


def asked(value: float, size: int = 4) -> dict[str, Array]:
    return {"X": np.full((1, size), value, np.float32)}


def request(**parameters: Any) -> InferRequest:
    return InferRequest("m", "1", {}, parameters=parameters)


async def turns(count: int = 20) -> None:
    """Lets every task go as far as it can."""
    for _ in range(count):
        await asyncio.sleep(0)


def hits_and_misses(statistics: ModelStatistics) -> tuple[int, int]:
    return statistics.cache_hit.count, statistics.cache_miss.count


async def test_identical_requests_share_one_run() -> None:
    model = FakeModel()
    cache = cache_of(model)
    waiting = [asyncio.create_task(cache.infer(asked(1), 1, None)) for _ in range(5)]
    other = asyncio.create_task(cache.infer(asked(2), 1, None))
    await turns()
    assert len(model.runs) == 2
    for run, value in zip(model.runs, (10, 20), strict=True):
        run.set_result(asked(value))
    executions = await asyncio.gather(*waiting)
    assert [execution.outputs["X"][0, 0] for execution in executions] == [10] * 5
    assert [execution.batch_rows for execution in executions] == [1, 0, 0, 0, 0]
    assert (await other).outputs["X"][0, 0] == 20
    assert hits_and_misses(cache._statistics) == (4, 2)


async def test_who_leaves_takes_nobody_along() -> None:
    model = FakeModel()
    cache = cache_of(model)
    first, second, third = [asyncio.create_task(cache.infer(asked(1), 1, None)) for _ in range(3)]
    await turns()
    second.cancel()
    await turns()
    assert not third.done()
    first.cancel()
    await turns()
    # Somebody has to run now, and it is the one that is left.
    assert len(model.runs) == 2
    model.runs[1].set_result(asked(10))
    assert (await third).outputs["X"][0, 0] == 10
    assert first.cancelled()
    assert second.cancelled()


async def test_after_a_failure_each_runs_on_its_own_and_nothing_is_kept() -> None:
    model = FakeModel()
    cache = cache_of(model)
    waiting = [asyncio.create_task(cache.infer(asked(1), 1, None)) for _ in range(3)]
    await turns()
    model.runs[0].set_exception(BackendFailed("the first"))
    await turns()
    assert len(model.runs) == 3
    model.runs[1].set_exception(BackendFailed("the second"))
    model.runs[2].set_result(asked(10))
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(answer) for answer in answers[:2]] == ["the first", "the second"]
    assert isinstance(answers[2], Execution)
    assert (await cache.infer(asked(1), 1, None)).batch_rows == 0
    assert hits_and_misses(cache._statistics) == (1, 3)


async def test_who_waits_for_another_keeps_its_own_deadline() -> None:
    model = FakeModel()
    cache = cache_of(model)
    first = asyncio.create_task(cache.infer(asked(1), 1, None))
    await turns()
    with pytest.raises(DeadlineExpired, match="identical request"):
        await cache.infer(asked(1), 1, InferRequest("m", "1", {}, deadline=time.monotonic()))
    model.runs[0].set_result(asked(10))
    assert (await first).batch_rows == 1


@pytest.mark.parametrize("name", ["timeout", "priority"])
async def test_who_waits_in_its_own_way_shares_no_run(name: str) -> None:
    model = FakeModel()
    cache = cache_of(model)
    given = [None, request(**{name: 5}), request(**{name: 5})]
    waiting = [asyncio.create_task(cache.infer(asked(1), 1, item)) for item in given]
    await turns()
    assert len(model.runs) == 3
    for run in model.runs:
        run.set_result(asked(10))
    await asyncio.gather(*waiting)
    # An answer that is there is everybody's.
    assert (await cache.infer(asked(1), 1, request(**{name: 6}))).batch_rows == 0


@pytest.mark.parametrize("parameters_matter", [True, False])
async def test_parameters_count_where_the_model_sees_them(parameters_matter: bool) -> None:
    model = FakeModel()
    cache = cache_of(model, parameters_matter=parameters_matter)
    waiting = [asyncio.create_task(cache.infer(asked(1), 1, request(top_k=k))) for k in (1, 1, 2)]
    await turns()
    assert len(model.runs) == (2 if parameters_matter else 1)
    for run in model.runs:
        run.set_result(asked(10))
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("size", [4, 100_000])
async def test_kept_answers_are_copies_that_nobody_can_write(size: int) -> None:
    model = FakeModel()
    cache = cache_of(model)
    batch = np.full((8, size), 7, np.float32)
    texts = np.array([[b"text"]], object)
    first = asyncio.create_task(cache.infer(asked(1), 1, None))
    await turns()
    model.runs[0].set_result({"Y": batch[2:3], "T": texts})
    await first
    batch[:] = 0
    texts[:] = b""
    kept = (await cache.infer(asked(1), 1, None)).outputs
    assert (kept["Y"] == 7).all()
    assert kept["Y"].base is None
    assert kept["T"].tolist() == [[b"text"]]
    for array in kept.values():
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


async def test_the_bytes_of_texts_are_counted() -> None:
    model = FakeModel()
    cache = cache_of(model, max_bytes=100_000)
    for number, length in enumerate((60_000, 30_000, 30_000, 200_000)):
        task = asyncio.create_task(cache.infer(asked(number), 1, None))
        await turns()
        model.runs[number].set_result({"Y": np.array([b"x" * length], object)})
        await task
    answers = cache._shared.answers
    # The first went for the third, and the last one is larger than everything.
    assert len(answers) == 2
    assert 60_000 < answers.nbytes < 64_000
    cache.close()
    assert (len(answers), answers.nbytes) == (0, 0)


async def test_after_the_model_went_nothing_is_kept() -> None:
    model = FakeModel()
    cache = cache_of(model)
    first = asyncio.create_task(cache.infer(asked(1), 1, None))
    await turns()
    cache.close()
    model.runs[0].set_result(asked(10))
    await first
    assert len(cache._shared.answers) == 0


def write_plus(repository: Path, amount: float) -> None:
    """``plus``: Y = X + amount."""
    constant = helper.make_tensor("C", 1, [1, 1], [amount])
    write_onnx(repository, "plus", onnx_model([helper.make_node("Add", ["X", "C"], ["Y"])], {"X": FP32}, {"Y": FP32}, [constant]), ENABLED)


async def test_a_reload_never_gives_the_old_models_answers(tmp_path: Path) -> None:
    write_plus(tmp_path, 1.0)
    async with serving(tmp_path) as served:
        for rows in (1, 0):
            execution = await served.find("plus").infer(asked(1), 1)
            assert (execution.outputs["Y"][0, 0], execution.batch_rows) == (2.0, rows)
        shutil.rmtree(tmp_path / "plus")
        write_plus(tmp_path, 2.0)
        await served.control.load("plus")
        for rows in (1, 0):
            execution = await served.find("plus").infer(asked(1), 1)
            assert (execution.outputs["Y"][0, 0], execution.batch_rows) == (3.0, rows)
        assert len(served.control._cache.answers) == 1


async def test_a_python_model_sees_parameters_so_they_count(tmp_path: Path) -> None:
    code = """
        import numpy as np

        class Model:
            runs = 0

            def execute(self, requests):
                self.runs += len(requests)
                return [{"Y": r.inputs["X"] * r.parameters.get("factor", 1) + 100 * self.runs} for r in requests]
    """
    write_python_model(tmp_path, "times", code, **ROWS, config=f"max_batch_size = 8\n{ENABLED}")
    async with serving(tmp_path) as served:
        answers = [
            float((await served.find("times").infer(asked(1), 1, request(factor=factor))).outputs["Y"][0, 0]) for factor in (2, 2, 3, 2)
        ]
    assert answers == [102.0, 102.0, 203.0, 102.0]


async def test_off_is_off(tmp_path: Path) -> None:
    write_identity(tmp_path, "plain", {"X": ("FP32", [-1, 4])}, "max_batch_size = 8")
    write_identity(tmp_path, "asks", {"X": ("FP32", [-1, 4])}, f"max_batch_size = 8\n{ENABLED}")
    async with serving(tmp_path, ModelsSettings(response_cache_bytes=0)) as served:
        for name in ("plain", "asks"):
            assert "infer" not in vars(served.find(name))
            for _ in range(2):
                assert (await served.find(name).infer(asked(1), 1)).batch_rows == 1


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ("[sequence]\nstart = 'START'", "a model of sequences"),
        ("[python]\ndecoupled = true", "a decoupled model"),
        ("[batching]\npreserve_ordering = true", "a model that preserves the order"),
    ],
)
async def test_who_may_not_be_kept_is_refused_at_load(tmp_path: Path, config: str, kind: str) -> None:
    tensors: dict[str, Any] = {"inputs": {"X": ("FP32", [1]), "START": ("FP32", [1])}, "outputs": {"Y": ("FP32", [1])}}
    write_python_model(tmp_path, "m", "class Model:\n    def execute(self, requests): ...\n", **tensors, config=f"{ENABLED}{config}")
    async with serving(tmp_path) as served:
        (entry,) = served.entries()
        assert entry.reason.startswith(f"model.toml: [response_cache] enable: wanted false for {kind}")
        assert entry.reason.endswith("got true")


async def test_of_a_request_in_parts_the_whole_answer_is_kept(tmp_path: Path) -> None:
    write_plus(tmp_path, 1.0)
    config = tmp_path / "plus" / "model.toml"
    config.write_text(f"max_batch_size = 2\n[batching]\nsplit_large_requests = true\n{ENABLED}")
    async with serving(tmp_path) as served:
        model = served.find("plus")
        five = {"X": np.arange(5, dtype=np.float32).reshape(5, 1)}
        for batch_rows in (2, 0):
            execution = await model.infer(five, 5)
            assert execution.outputs["Y"][:, 0].tolist() == [1, 2, 3, 4, 5]
            assert execution.batch_rows == batch_rows
        assert hits_and_misses(model.statistics) == (1, 1)
        assert len(served.control._cache.answers) == 1


async def test_the_steps_of_a_pipeline_are_kept_and_the_pipeline_is_not(tmp_path: Path) -> None:
    write_plus(tmp_path, 1.0)
    tensors: dict[str, Any] = {"inputs": {"X": None}, "outputs": {"Y": None}}
    step = Step("plus", "", {"X": "X"}, {"Y": "Y"})
    write_pipeline(tmp_path, "pipe", [step], **tensors)
    write_pipeline(tmp_path, "kept", [step], **tensors, config=ENABLED)
    async with serving(tmp_path) as served:
        for _ in range(2):
            assert (await served.find("pipe").infer(asked(1), 1)).outputs["Y"][0, 0] == 2.0
        counted = served.find("plus").statistics
        assert hits_and_misses(counted) == (1, 1)
        assert (counted.success.count, counted.inference_count, counted.execution_count) == (2, 1, 1)
        reason = next(entry.reason for entry in served.entries() if entry.name == "kept")
        assert reason.startswith("model.toml: [response_cache] enable: wanted false for a pipeline")


async def test_a_hit_is_a_success_and_no_execution_in_statistics_and_traces(tmp_path: Path) -> None:
    write_identity(
        tmp_path, "m", {"X": ("FP32", [-1, 4])}, f'max_batch_size = 8\n{ENABLED}[identity]\nfail_value = 9.0\n[output.Y]\nlabels = "l"'
    )
    (tmp_path / "m" / "l").write_text("cat\ndog\nowl\nelk\n")
    trace = tmp_path / "trace"
    settings = NodeSettings(
        server=ServerSettings(trace_file=str(trace)), models=ModelsSettings(repository=str(tmp_path)), drain=DrainSettings(notice_s=0)
    )
    node = await asyncio.to_thread(Node, settings)
    node.start()
    assert node._loading
    await node._loading
    node._tracer.update("", {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"], "log_frequency": ["3"]})
    plane = node.data_plane

    async def ask(value: float, *outputs: RequestedOutput) -> Tensor:
        tensor = Tensor(Datatype.FP32, np.array([[value, 1, 2, 3]], np.float32))
        return (await plane.infer(InferRequest("m", "", {"X": tensor}, outputs=outputs))).outputs["Y"]

    assert (await ask(1)).array.tolist() == [[1, 1, 2, 3]]
    assert (await ask(1)).array.tolist() == [[1, 1, 2, 3]]
    # What is made of the answer is not part of the key.
    assert (await ask(1, RequestedOutput("Y", {"classification": 1}))).array.tolist() == [[b"3.000000:3:elk"]]
    for _ in range(2):
        with pytest.raises(GatewayError):
            await ask(9)
    (counted,) = encode_statistics(plane.statistics("m")).model_stats
    assert (counted.inference_count, counted.execution_count) == (1, 1)
    stats = counted.inference_stats
    assert {field.name: getattr(stats, field.name).count for field in stats.DESCRIPTOR.fields} == {
        "success": 3,
        "fail": 2,
        "queue": 3,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
        "cache_hit": 2,
        "cache_miss": 3,
    }
    assert stats.cache_hit.ns > 0
    assert [(item.batch_size, item.compute_infer.count) for item in counted.batch_stats] == [(1, 1)]
    await node.drain(lambda: 0)
    await asyncio.to_thread(node.processing_pool.shutdown)
    timed = [item["timestamps"] for item in json.loads(await asyncio.to_thread(Path(f"{trace}.0").read_text)) if "timestamps" in item]
    outside = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert [[moment["name"] for moment in item] for item in timed] == [
        [*outside[:2], "COMPUTE_START", "COMPUTE_END", outside[2]],
        outside,
        outside,
    ]
