"""Repositories loaded for real: what is served, what is refused and why, and what a model does with requests."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from core_grpc.errors import BackendFailed, DeadlineExpired, GatewayError, InvalidArgument, ModelNotReady, NotFound
from core_grpc.lifecycle import ModelState
from core_grpc.models.registry import ModelEntry, Registry
from core_grpc.settings import SettingsError
from core_grpc.types import Array, Datatype, InferRequest
from tests.support import models as fixtures
from tests.support.serving import Served, serving

FP32 = Datatype.FP32


def row(*values: float) -> dict[str, Array]:
    return {"X": np.array([values], dtype=np.float32)}


def entry_of(registry: Registry, name: str) -> ModelEntry:
    return next(entry for entry in registry.entries() if entry.name == name)


async def test_broken_models_have_reasons_and_the_others_are_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fixtures.write_badload(tmp_path)
    fixtures.write_addsub_i32(tmp_path)
    (tmp_path / "empty").mkdir()
    async with serving(tmp_path) as registry:
        states = {entry.name: entry.state for entry in registry.entries()}
        assert states == {"addsub_i32": ModelState.READY, "badload": ModelState.UNAVAILABLE, "empty": ModelState.UNAVAILABLE}
        bad = entry_of(registry, "badload")
        assert bad.reason.startswith("model.onnx is not a model that ONNX Runtime")
        assert bad.spec is None
        with pytest.raises(ModelNotReady, match=r"'badload' version 1 is not at ready state: UNAVAILABLE, model\.onnx is not a model"):
            registry.find("badload", "1")
        with pytest.raises(ModelNotReady, match="'empty' has no available versions: UNAVAILABLE, no version directory"):
            registry.find("empty")
        left = np.arange(16, dtype=np.int32).reshape(1, 16)
        execution = await registry.find("addsub_i32").infer({"INPUT0": left, "INPUT1": left * 2}, 1, None)
        assert execution.outputs["OUTPUT0"].tolist() == (left * 3).tolist()
        assert execution.outputs["OUTPUT1"].tolist() == (-left).tolist()
    assert sum("badload version 1 cannot be served" in record.message for record in caplog.records) == 1


async def test_lookups(tmp_path: Path) -> None:
    for version in ("1", "2", "10"):
        fixtures.write_onnx(
            tmp_path,
            f"m/{version}",
            fixtures.onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": (FP32, (1,))}, {"Y": (FP32, (1,))}),
        )
        (tmp_path / "m" / version / "1" / "model.onnx").rename(tmp_path / "m" / version / "model.onnx")
    (tmp_path / "m" / "2" / "model.onnx").write_bytes(b"broken")
    (tmp_path / "m" / "model.toml").write_text('versions = "all"', encoding="utf-8")
    async with serving(tmp_path) as registry:
        assert registry.versions("m") == ["1", "10"]
        assert registry.find("m").spec.version == "10"
        assert registry.find("m", "1").spec.version == "1"
        with pytest.raises(ModelNotReady):
            registry.find("m", "2")
        for version in ("999", "01", "99999999999999999999"):
            with pytest.raises(NotFound, match=f"'m' version '{version}' is not found"):
                registry.find("m", version)
        for version in ("1abc", " 1", "-1", "0x1", "١", "latest"):  # noqa: RUF001 (an Arabic digit one, which str.isdigit accepts)
            with pytest.raises(InvalidArgument, match="failed to get model version from specified version string"):
                registry.find("m", version)
        for name in ("", "nope", "m ", "..", "../m", "/etc", "m/1", "a\0b"):
            with pytest.raises(NotFound, match="Request for unknown model"):
                registry.find(name)
        with pytest.raises(NotFound):
            registry.versions("nope")


async def test_repository_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such directory"):
        await Served(tmp_path / "missing").control.load_all()


@pytest.mark.parametrize("datatype", list(Datatype))
async def test_concurrent_requests_of_every_datatype_get_their_own_rows(tmp_path: Path, datatype: Datatype) -> None:
    """BAT-01 and BAT-14: different shapes and lengths meet in the batcher."""
    name = fixtures.write_id(tmp_path, datatype, "[batching]\nmax_queue_delay_ms = 5\n")
    async with serving(tmp_path) as registry:
        model = registry.find(name)
        assert model.spec.max_batch_size == 8
        inputs: list[Array] = []
        for i in range(16):
            array = np.zeros((1 + i % 2, 4 + 2 * (i % 3)), dtype=datatype.dtype)
            array[...] = b"x" * (0, 1, 2, 1000, 65536, 3, 0, 7)[i % 8] if datatype is Datatype.BYTES else np.array(i).astype(datatype.dtype)
            inputs.append(array)
        executions = await asyncio.gather(*(model.infer({"X": array}, array.shape[0], None) for array in inputs))
        for array, execution in zip(inputs, executions, strict=True):
            np.testing.assert_array_equal(execution.outputs["Y"], array, strict=True)
        assert max(execution.batch_rows for execution in executions) > 2, "nothing was batched"


async def test_bad_index_fails_alone(tmp_path: Path) -> None:
    """BAT-04."""
    fixtures.write_gather(tmp_path, "[batching]\nmax_queue_delay_ms = 20\n")
    async with serving(tmp_path) as registry:
        model = registry.find("gather")
        indices = [0, 1, 2, 99, 3, 4, 5, 6]
        results = await asyncio.gather(*(model.infer({"I": np.array([[i]])}, 1, None) for i in indices), return_exceptions=True)
        for index, result in zip(indices, results, strict=True):
            if index == 99:
                assert isinstance(result, InvalidArgument)
                assert "99" in result.message
            else:
                assert not isinstance(result, BaseException)
                assert result.outputs["Y"].tolist() == [[index * 10.0]]


async def test_output_without_the_batch_dimension(tmp_path: Path) -> None:
    """BAT-11: refused by the warm-up; without one, every member fails."""
    fixtures.write_nobatch(tmp_path / "warm")
    fixtures.write_nobatch(tmp_path / "cold", "[warmup]\ncount = 0\n[batching]\nmax_queue_delay_ms = 20\n")
    async with serving(tmp_path / "warm") as registry:
        assert "warm-up with zeros at batch 8 failed" in entry_of(registry, "nobatch").reason
        assert "output 'Y': wanted 8 rows" in entry_of(registry, "nobatch").reason
    async with serving(tmp_path / "cold") as registry:
        model = registry.find("nobatch")
        results = await asyncio.gather(*(model.infer(row(1, 2, 3, 4), 1, None) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(result, BackendFailed) and "output 'Y'" in result.message for result in results)


async def test_models_without_a_batch_dimension_run_one_by_one(tmp_path: Path) -> None:
    fixtures.write_nonzero(tmp_path)
    fixtures.write_scalars(tmp_path)
    fixtures.write_big_out(tmp_path)
    async with serving(tmp_path) as registry:
        assert {entry.spec.max_batch_size for entry in registry.entries() if entry.spec} == {0}
        nonzero = registry.find("nonzero")
        counts = (0, 1, 1000, 3, 0)
        results = await asyncio.gather(*(nonzero.infer({"X": np.ones(n, np.float32)}, 1, None) for n in counts))
        assert [result.outputs["Y"].shape for result in results] == [(1, n) for n in counts]
        scalar = await registry.find("scalar").infer({"X": np.ones(3, np.float32)}, 1, None)
        assert (scalar.outputs["Y"].shape, float(scalar.outputs["Y"]), scalar.batch_rows) == ((), 3.0, 1)
        big = await registry.find("big_out").infer({"N": np.array([100_000])}, 1, None)
        assert big.outputs["Y"].shape == (100_000,)


async def test_missing_and_given_optional_inputs_do_not_share(tmp_path: Path) -> None:
    """WIRE-19."""
    fixtures.write_opt(tmp_path)
    async with serving(tmp_path) as registry:
        model, ones = registry.find("opt"), np.ones(4, np.float32)
        requests = [{"A": ones} if i % 2 else {"A": ones, "B": ones} for i in range(10)]
        results = await asyncio.gather(*(model.infer(request, 1, None) for request in requests))
        assert [result.outputs["Y"][0] for result in results] == [2.0, 101.0] * 5


async def test_declared_labels_images_and_derived_outputs(tmp_path: Path) -> None:
    shape = (FP32, ("batch", 3, 8, 8))
    node = helper.make_node("ReduceMean", ["X"], ["scores"], axes=[2, 3], keepdims=0)
    fixtures.write_onnx(
        tmp_path,
        "m",
        fixtures.onnx_model([node], {"X": shape}, {"scores": (FP32, ("batch", 3))}),
        'description = "three colours"\n[input.X.image]\nresize = "exact"\n[output.scores]\nlabels = "labels.txt"\n'
        '[output.probabilities]\nfrom = "scores"\napply = "softmax"\n',
    )
    (tmp_path / "m" / "labels.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    async with serving(tmp_path) as registry:
        model = registry.find("m")
        assert (model.spec.inputs[0].accepts, list(model.preprocessing)) == ("image", ["X"])
        assert model.spec.description == "three colours"
        assert [(spec.name, spec.labels) for spec in model.spec.outputs] == [
            ("scores", ("red", "green", "blue")),
            ("probabilities", ("red", "green", "blue")),
        ]
        execution = await model.infer({"X": np.ones((2, 3, 8, 8), np.float32)}, 2, None)
        np.testing.assert_allclose(execution.outputs["probabilities"], np.full((2, 3), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize(("table", "served"), [("", ["probabilities"]), ("[output.Y]\n", ["Y", "probabilities"])])
async def test_a_derived_output_stands_in_for_a_source_without_a_table(tmp_path: Path, table: str, served: list[str]) -> None:
    fixtures.write_id(tmp_path, FP32, f'{table}[output.probabilities]\nfrom = "Y"\napply = "softmax"\n')
    async with serving(tmp_path) as registry:
        model = registry.find("id_fp32")
        assert [spec.name for spec in model.spec.outputs] == served
        execution = await model.infer({"X": np.zeros((1, 2), np.float32)}, 1, None)
        np.testing.assert_allclose(execution.outputs["probabilities"], [[0.5, 0.5]])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("[input.Z]", r"\[input.Z\]: the model has no such input; it has 'X'"),
        ("[output.Z]", r"\[output.Z\]: the model has no such output; it has 'Y'"),
        ('[input.X]\ndatatype = "FP32"', r"\[input.X\]: datatype and shape go together"),
        ('[input.X]\ndatatype = "INT8"\nshape = [-1, -1]', r"\[input.X\] datatype: wanted FP32, as the model has it, got INT8"),
        ('[input.X]\ndatatype = "FP32"\nshape = [-1]', r"\[input.X\] shape: wanted \[-1, -1\], as the model has it, got \[-1\]"),
        ('[input.X]\ndatatype = "FP32"\nshape = [2, 5]', r"\[input.X\] shape: wanted \[-1, -1\], as the model has it, got \[2, 5\]"),
        ('[input.X]\ndatatype = "FP32"\nshape = [-1, -1]\noptional = true', r"\[input.X\] optional: wanted an input that the model has"),
        ('[output.P]\nfrom = "Z"\napply = "softmax"', r"\[output.P\] from: wanted one of Y, got 'Z'"),
        ('[output.Y]\nfrom = "Y"\napply = "softmax"', r"\[output.Y\] from: the model has this output itself"),
        ('[output.P]\nfrom = "Y"\napply = "magic"', "magic"),
        ('[output.Y]\nlabels = "../labels.txt"', "outside the model's directory"),
        ('[output.Y]\nlabels = "labels.txt"', "labels"),
        ("[onnxruntime]\nthreads = 1", r"\[onnxruntime\] threads: no such option"),
    ],
)
async def test_model_toml_that_contradicts_the_model(tmp_path: Path, config: str, reason: str) -> None:
    name = fixtures.write_id(tmp_path, FP32, config)
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelNotReady, match=reason):
            registry.find(name)


async def test_a_variable_size_may_be_declared_as_one_number(tmp_path: Path) -> None:
    name = fixtures.write_id(tmp_path, FP32, '[input.X]\ndatatype = "FP32"\nshape = [-1, 5]')
    async with serving(tmp_path) as registry:
        assert registry.find(name).spec.inputs[0].shape == (-1, 5)
        assert registry.find(name).spec.outputs[0].shape == (-1, -1)


async def test_batch_size_for_a_model_without_a_batch_dimension(tmp_path: Path) -> None:
    shape = (FP32, (1, 4))
    model = fixtures.onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": shape}, {"Y": shape})
    fixtures.write_onnx(tmp_path, "fixed", model, "max_batch_size = 8")
    async with serving(tmp_path) as registry:
        assert "max_batch_size: wanted 0, because 'X' has shape [1, 4]" in entry_of(registry, "fixed").reason


async def test_several_instances_run_at_once(tmp_path: Path) -> None:
    fixtures.write_identity(
        tmp_path,
        "slow",
        {"X": ("FP32", [-1, 1])},
        "max_batch_size = 1\n[instances]\ncount = 4\n[warmup]\ncount = 0\n[identity]\ndelay_ms = 500",
    )
    async with serving(tmp_path) as registry:
        model = registry.find("slow")
        began = time.monotonic()
        results = await asyncio.gather(*(model.infer(row(i), 1, None) for i in range(4)))
        assert [float(result.outputs["Y"][0, 0]) for result in results] == [0, 1, 2, 3]
        assert time.monotonic() - began < 1.9, "four delays of 0.5 s one after the other are 2"


async def test_deadline_in_the_queue(tmp_path: Path) -> None:
    """BAT-08."""
    config = "max_batch_size = 1\n[warmup]\ncount = 0\n[identity]\ndelay_ms = 300"
    fixtures.write_identity(tmp_path, "slow", {"X": ("FP32", [-1, 1])}, config)
    async with serving(tmp_path) as registry:
        model = registry.find("slow")
        first = asyncio.ensure_future(model.infer(row(1), 1, None))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExpired):
            await model.infer(row(2), 1, InferRequest("slow", "", {}, deadline=time.monotonic() + 0.05))
        assert not first.done()
        await first


async def test_drain_and_close(tmp_path: Path) -> None:
    config = "max_batch_size = 1\n[warmup]\ncount = 0\n[identity]\ndelay_ms = 100"
    fixtures.write_identity(tmp_path, "slow", {"X": ("FP32", [-1, 1])}, config)
    async with serving(tmp_path) as registry:
        model = registry.find("slow")
        work = [asyncio.ensure_future(model.infer(row(i), 1, None)) for i in range(4)]
        await asyncio.sleep(0)
        assert not await registry.control.drain(0.05)
        assert await registry.control.drain(10)
        assert all(task.done() and not task.exception() for task in work)
        last = [asyncio.ensure_future(model.infer(row(i), 1, None)) for i in range(3)]
        await asyncio.sleep(0.02)
        await registry.control.close()
        outcomes = await asyncio.gather(*last, return_exceptions=True)
        assert not isinstance(outcomes[0], BaseException), "what was executing is finished"
        assert all(isinstance(outcome, ModelNotReady) for outcome in outcomes[1:])
        assert entry_of(registry, "slow").state is ModelState.UNAVAILABLE
        with pytest.raises(ModelNotReady, match="UNAVAILABLE, the server has stopped"):
            registry.find("slow")
        with pytest.raises(ModelNotReady):
            await model.infer(row(1), 1, None)


async def test_scripted_failure_reaches_its_caller(tmp_path: Path) -> None:
    fixtures.write_identity(tmp_path, "m", {"X": ("FP32", [-1, 1])}, "[identity]\nfail_value = 99")
    async with serving(tmp_path) as registry:
        outcomes = await asyncio.gather(*(registry.find("m").infer(row(v), 1, None) for v in (1, 99, 2)), return_exceptions=True)
        assert [isinstance(outcome, GatewayError) for outcome in outcomes] == [False, True, False]


async def test_warm_up_that_fails_on_a_guessed_size_does_not_count(tmp_path: Path) -> None:
    node = helper.make_node("Concat", ["X", "two"], ["Y"], axis=0)
    two = helper.make_tensor("two", fixtures.ONNX_TYPES[FP32], [1, 2], [1.0, 2.0])
    model = fixtures.onnx_model([node], {"X": (FP32, ("n", "k"))}, {"Y": (FP32, ("m", "k"))}, [two])
    fixtures.write_onnx(tmp_path, "guess", model)
    async with serving(tmp_path) as registry:
        assert entry_of(registry, "guess").state is ModelState.READY


async def test_failed_loads_leave_no_threads(tmp_path: Path) -> None:
    """LIFE-12."""
    fixtures.write_id(tmp_path, FP32, "[input.Z]")
    fixtures.write_nobatch(tmp_path)
    before = threading.active_count()
    for _ in range(5):
        async with serving(tmp_path) as registry:
            assert {entry.state for entry in registry.entries()} == {ModelState.UNAVAILABLE}
    gc.collect()
    async with asyncio.timeout(5):
        while threading.active_count() > before:  # noqa: ASYNC110 (a thread ends without an event)
            await asyncio.sleep(0.001)
