"""Models of sequences, on real engines: states that are kept, begun anew and shown, rows of slots without a request, and refusals."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from core_grpc.data_plane import DataPlane
from core_grpc.errors import InvalidArgument, ModelNotReady
from core_grpc.lifecycle import SERVER_STEPS, Lifecycle, ServerState
from core_grpc.models.model import Model
from core_grpc.observability.tracing import Tracer
from core_grpc.settings import NodeSettings
from core_grpc.types import Datatype, InferRequest, Tensor
from tests.support import models, python_models
from tests.support.serving import serving

ONE = (Datatype.FP32, ("batch", 1))
STATE = '[[sequence.state]]\ninput = "SUM"\noutput = "SUM_OUT"\n'
SEQUENCE = f"max_batch_size = 4\n[sequence]\n{STATE}"


def write_sum(repository: Path, config: str = SEQUENCE, *, state: tuple[Datatype, tuple[int | str, ...]] = ONE) -> None:
    """``sum``: Y = SUM_OUT = SUM + X, FP32 [batch, 1]."""
    nodes = [helper.make_node("Add", ["SUM", "X"], ["SUM_OUT"]), helper.make_node("Identity", ["SUM_OUT"], ["Y"])]
    model = models.onnx_model(nodes, {"X": ONE, "SUM": state}, {"Y": ONE, "SUM_OUT": state})
    models.write_onnx(repository, "sum", model, config)


async def ask(model: Model, value: float, sequence_id: int | str, flags: str = "") -> float:
    outputs = (await model.infer({"X": np.full((1, 1), value, np.float32)}, 1, request(sequence_id, flags))).outputs
    assert list(outputs) == ["Y"]
    return float(outputs["Y"][0, 0])


def request(sequence_id: int | str, flags: str = "") -> InferRequest:
    """Flags: s for the start, e for the end."""
    parameters = {"sequence_id": sequence_id, "sequence_start": "s" in flags, "sequence_end": "e" in flags}
    return InferRequest("sum", "", {}, parameters=parameters)


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
async def test_each_sequence_has_a_state_of_its_own_that_callers_do_not_see(tmp_path: Path, strategy: str) -> None:
    write_sum(tmp_path, f'max_batch_size = 4\n[sequence]\nstrategy = "{strategy}"\n{STATE}')
    async with serving(tmp_path) as registry:
        model = registry.find("sum")
        assert ([item.name for item in model.spec.inputs], [item.name for item in model.spec.outputs]) == (["X"], ["Y"])
        got = await asyncio.gather(*(ask(model, value, key, "s") for key, value in ((1, 1.0), ("1", 10.0), (2**64 - 1, 100.0))))
        got += await asyncio.gather(*(ask(model, value, key) for key, value in ((2**64 - 1, 200.0), ("1", 20.0), (1, 2.0))))
        assert got == [1.0, 10.0, 100.0, 300.0, 30.0, 3.0]
        # A start begins anew; an end lets go of what was kept.
        assert await ask(model, 5.0, 1, "s") == 5.0
        assert await ask(model, 1.0, 1, "e") == 6.0
        with pytest.raises(InvalidArgument, match="sequence 1 to model 'sum' must specify the START flag"):
            await ask(model, 1.0, 1)
        assert not model.is_idle
        for key in ("1", 2**64 - 1):
            await ask(model, 0.0, key, "e")
        assert model.is_idle


async def test_requests_sent_ahead_run_in_order(tmp_path: Path) -> None:
    write_sum(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find("sum")
        flags = ["s", *[""] * 18, "e"]
        got = await asyncio.gather(*(ask(model, float(value), key, flags[value]) for value in range(20) for key in (1, 2, 3)))
        sums = np.cumsum(np.arange(20.0)).tolist()
        assert [got[key::3] for key in range(3)] == [sums] * 3


@pytest.mark.parametrize("name", ["first.npy", "first.raw"])
async def test_a_sequence_may_begin_with_the_content_of_a_file(tmp_path: Path, name: str) -> None:
    write_sum(tmp_path, SEQUENCE + f'initial = "{name}"\n')
    first = np.array([40.0], np.float32)
    path = tmp_path / "sum" / name
    np.save(path, first) if name.endswith(".npy") else first.tofile(path)
    async with serving(tmp_path) as registry:
        assert await ask(registry.find("sum"), 2.0, 1, "s") == 42.0
        assert await ask(registry.find("sum"), 2.0, 1, "s") == 42.0


async def test_a_state_is_shown_where_its_owner_declares_it(tmp_path: Path) -> None:
    write_sum(tmp_path, SEQUENCE + '[output.SUM_OUT]\ndescription = "so far"\n')
    async with serving(tmp_path) as registry:
        model = registry.find("sum")
        assert [item.name for item in model.spec.outputs] == ["Y", "SUM_OUT"]
        outputs = (await model.infer({"X": np.ones((1, 1), np.float32)}, 1, request(1, "se"))).outputs
        assert outputs["SUM_OUT"].tolist() == [[1.0]]


async def test_a_failed_request_leaves_the_state_as_it_was_and_the_others_alone(tmp_path: Path) -> None:
    """``pick``: SUM_OUT = SUM + table[X], and the table has 3 entries."""
    index = (Datatype.INT64, ("batch", 1))
    nodes = [
        helper.make_node("Gather", ["table", "X"], ["picked"]),
        helper.make_node("Add", ["SUM", "picked"], ["SUM_OUT"]),
        helper.make_node("Identity", ["SUM_OUT"], ["Y"]),
    ]
    table = helper.make_tensor("table", TensorProto.FLOAT, [3], [1.0, 10.0, 100.0])
    model = models.onnx_model(nodes, {"X": index, "SUM": ONE}, {"Y": ONE, "SUM_OUT": ONE}, [table])
    models.write_onnx(tmp_path, "pick", model, SEQUENCE)
    async with serving(tmp_path) as registry:
        pick = registry.find("pick")

        async def one(value: int, key: int, flags: str = "") -> float:
            return float((await pick.infer({"X": np.array([[value]])}, 1, request(key, flags))).outputs["Y"][0, 0])

        assert await asyncio.gather(*(one(key, key + 1, "s") for key in range(3))) == [1.0, 10.0, 100.0]
        got = await asyncio.gather(one(0, 1), one(7, 2), one(0, 3), return_exceptions=True)
        assert (got[0], got[2]) == (2.0, 101.0)
        assert isinstance(got[1], InvalidArgument)
        assert await one(0, 2, "e") == 11.0


async def test_a_direct_batch_has_a_row_for_each_slot_and_tells_which_are_empty(tmp_path: Path) -> None:
    """``rows``: Y [batch, 4] is READY of every row of the batch, padded with 9."""
    nodes = [
        helper.make_node("Reshape", ["READY", "flat"], ["line"]),
        helper.make_node("Concat", ["line", "nines"], ["long"], axis=0),
        helper.make_node("Slice", ["long", "zero", "four"], ["first"]),
        helper.make_node("Mul", ["X", "nothing"], ["zeros"]),
        helper.make_node("Add", ["zeros", "first"], ["Y"]),
    ]
    initializers = [
        helper.make_tensor("flat", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("nines", TensorProto.FLOAT, [4], [9.0] * 4),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("four", TensorProto.INT64, [1], [4]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [], [0.0]),
    ]
    model = models.onnx_model(nodes, {"X": ONE, "READY": ONE}, {"Y": (Datatype.FP32, ("batch", 4))}, initializers)
    config = 'max_batch_size = 4\n[sequence]\nstrategy = "direct"\nready = "READY"\n'
    models.write_onnx(tmp_path, "rows", model, config)
    async with serving(tmp_path) as registry:
        rows = registry.find("rows")

        async def readies(key: int, flags: str = "") -> list[float]:
            outputs = (await rows.infer({"X": np.ones((1, 1), np.float32)}, 1, request(key, flags))).outputs
            return [float(value) for value in outputs["Y"][0]]

        for key in (1, 2, 3):
            await readies(key, "s")
        # The third sequence keeps the third place, with and without the others.
        assert await readies(3) == [0.0, 0.0, 1.0, 9.0]
        both = await asyncio.gather(readies(1), readies(3))
        assert list(both) == [[1.0, 0.0, 1.0, 9.0]] * 2
        await readies(2, "e")
        # A place that became free is given to the next.
        assert await readies(4, "s") == [0.0, 1.0, 9.0, 9.0]
        assert await readies(3) == [0.0, 0.0, 1.0, 9.0]
        # Rows of nobody are not counted.
        assert set(rows.statistics.batches) == {1, 2}


async def test_a_model_without_a_batch_dimension(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["SUM", "X"], ["SUM_OUT"]), helper.make_node("Identity", ["SUM_OUT"], ["Y"])]
    one = (Datatype.FP32, (1, 1))
    model = models.onnx_model(nodes, {"X": one, "SUM": one}, {"Y": one, "SUM_OUT": one})
    models.write_onnx(tmp_path, "sum", model, f"[sequence]\n{STATE}")
    async with serving(tmp_path) as registry:
        calls = ((1, 1, "s"), (5, 2, "s"), (2, 1, ""), (6, 2, "e"))
        got = [await ask(registry.find("sum"), value, key, flags) for value, key, flags in calls]
        assert got == [1.0, 5.0, 3.0, 11.0]


async def test_states_whose_shapes_grow_share_batches_only_where_they_are_alike(tmp_path: Path) -> None:
    """``trail``: SEEN_OUT [batch, seen + 1] is SEEN and X; Y is its sum."""
    nodes = [
        helper.make_node("Concat", ["SEEN", "X"], ["SEEN_OUT"], axis=1),
        helper.make_node("ReduceSum", ["SEEN_OUT", "axes"], ["Y"], keepdims=1),
    ]
    axes = [helper.make_tensor("axes", TensorProto.INT64, [1], [1])]
    states = {name: (Datatype.FP32, ("batch", size)) for name, size in (("SEEN", "seen"), ("SEEN_OUT", "seen_next"))}
    model = models.onnx_model(nodes, {"X": ONE, "SEEN": states["SEEN"]}, {"Y": ONE, "SEEN_OUT": states["SEEN_OUT"]}, axes)
    state = '[[sequence.state]]\ninput = "SEEN"\noutput = "SEEN_OUT"\ninitial = "none.npy"\n'
    models.write_onnx(tmp_path, "trail", model, f"max_batch_size = 4\n[warmup]\ncount = 0\n[sequence]\n{state}")
    np.save(tmp_path / "trail" / "none.npy", np.zeros(0, np.float32))
    async with serving(tmp_path) as registry:
        trail = registry.find("trail")
        assert [await ask(trail, value, 1, flags) for value, flags in ((1.0, "s"), (2.0, ""))] == [1.0, 3.0]
        assert await ask(trail, 10.0, 2, "s") == 10.0
        assert await ask(trail, 100.0, 3, "s") == 100.0
        assert list(await asyncio.gather(ask(trail, 3.0, 1), ask(trail, 20.0, 2), ask(trail, 200.0, 3))) == [6.0, 30.0, 300.0]


async def test_a_model_in_python_is_given_its_states_too_wherever_their_batch_is(tmp_path: Path) -> None:
    code = """
        import numpy as np

        class Model:
            def execute(self, requests):
                return [self.one(**request.inputs) for request in requests]

            def one(self, X, SUM, NEW):
                assert SUM.shape == (2, 1, 1), SUM.shape
                total = np.zeros_like(SUM) if NEW[0, 0] else SUM
                total = total + X[0, 0]
                return {"Y": total[0], "SUM_OUT": total}
    """
    shape = 'datatype = "FP32"\nshape = [2, -1, 1]\n'
    config = f'max_batch_size = 4\n[sequence]\nstart = "NEW"\n[[sequence.state]]\ninput = "SUM"\noutput = "SUM_OUT"\n{shape}'
    inputs = {"X": ("FP32", [-1, 1]), "NEW": ("BOOL", [-1, 1])}
    python_models.write_python_model(tmp_path, "sum", code, inputs=inputs, outputs={"Y": ("FP32", [-1, 1])}, config=config)
    async with serving(tmp_path) as registry:
        model = registry.find("sum")
        got = await asyncio.gather(*(ask(model, value, key, "s") for key, value in ((1, 1.0), (2, 10.0))))
        got += await asyncio.gather(*(ask(model, value, key) for key, value in ((2, 20.0), (1, 2.0))))
        assert got == [1.0, 10.0, 30.0, 3.0]


async def test_images_are_admitted_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """``film``: SUM_OUT = Y = 2 SUM + the image's mean. The first image takes much longer to decode than the second."""
    nodes = [
        helper.make_node("ReduceMean", ["X"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "column"], ["light"]),
        helper.make_node("Add", ["SUM", "SUM"], ["twice"]),
        helper.make_node("Add", ["twice", "light"], ["SUM_OUT"]),
        helper.make_node("Identity", ["SUM_OUT"], ["Y"]),
    ]
    column = [helper.make_tensor("column", TensorProto.INT64, [2], [-1, 1])]
    inputs = {"X": (Datatype.FP32, ("batch", 3, 8, 8)), "SUM": ONE}
    models.write_onnx(
        tmp_path,
        "film",
        models.onnx_model(nodes, inputs, {"Y": ONE, "SUM_OUT": ONE}, column),
        f'max_batch_size = 4\n[input.X.image]\nresize = "exact"\nmean = 0\nstd = 1\n[sequence]\n{STATE}',
    )
    large, small = image(3000, 100), image(8, 10)
    pool = ThreadPoolExecutor(2)
    async with serving(tmp_path) as registry:
        lifecycle = Lifecycle(SERVER_STEPS, ServerState.STARTING)
        lifecycle.to(ServerState.SERVING)
        plane = DataPlane(registry, registry.control, lifecycle, NodeSettings(), pool, Tracer("", pool))

        async def show(encoded: bytes, flags: str) -> float:
            array = np.array([encoded], object)
            asked = request(1, flags)._replace(model_name="film", inputs={"X": Tensor(Datatype.BYTES, array)})
            return float((await plane.infer(asked)).outputs["Y"].array[0, 0])

        assert list(await asyncio.gather(show(large, "s"), show(small, ""), show(small, "e"))) == [100.0, 210.0, 430.0]
    pool.shutdown()


def image(size: int, grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (grey, grey, grey)).save(file, "PNG")
    return file.getvalue()


async def test_a_request_has_one_row(tmp_path: Path) -> None:
    write_sum(tmp_path)
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidArgument, match=r"must specify batch-size 1 .*: got batch 2"):
            await registry.find("sum").infer({"X": np.ones((2, 1), np.float32)}, 2, request(1, "s"))


async def test_unloading_does_not_wait_for_sequences_that_nobody_goes_on_with(tmp_path: Path) -> None:
    write_sum(tmp_path, f"max_batch_size = 4\n[sequence]\nmax_candidate_sequences = 1\nmax_idle_ms = 80000000\n{STATE}")
    async with serving(tmp_path) as registry:
        model = registry.find("sum")
        assert await ask(model, 1.0, 1, "s") == 1.0
        model.users += 1
        waiting = asyncio.create_task(ask(model, 2.0, 2, "s"))
        waiting.add_done_callback(lambda _: model.release())
        await asyncio.sleep(0)
        await registry.control.unload("sum")
        assert await waiting == 2.0
        with pytest.raises(ModelNotReady):
            await ask(model, 2.0, 1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (SEQUENCE.replace('"SUM"', '"NOPE"'), r"\[sequence.state\] input: wanted one of X, SUM, got 'NOPE'"),
        (SEQUENCE.replace('"SUM_OUT"', '"NOPE"'), r"\[sequence.state\] output: wanted one of Y, SUM_OUT, got 'NOPE'"),
        (SEQUENCE + 'initial = "../other.npy"\n', "outside the model's directory"),
        (SEQUENCE + 'initial = "missing.npy"\n', r"initial 'missing.npy': wanted a file"),
        (SEQUENCE + 'datatype = "FP32"\n', "datatype and shape go together"),
        (SEQUENCE + "batch_axis = 3\n", "batch_axis: wanted 0 to 1 for 'SUM', got 3"),
        (SEQUENCE + STATE, "wanted a different input for each purpose, got 'SUM' twice"),
        (
            SEQUENCE.replace("[sequence]", '[sequence]\nstrategy = "direct"\nmax_candidate_sequences = 3'),
            "max_candidate_sequences: wanted nothing",
        ),
        (SEQUENCE.replace("[sequence]", "[sequence]\nminimum_slot_utilization = 0.5"), "minimum_slot_utilization: wanted nothing"),
        ("[batching]\npreserve_ordering = true\n", r"\[batching\] preserve_ordering: for a model with \[sequence\]"),
        ("[batching]\nsplit_large_requests = true\n", r"\[batching\] split_large_requests: for a model with \[sequence\]"),
        ("[queue]\npriority_levels = 2\n", r"\[queue\] priority_levels: for a model with \[sequence\]"),
        ('[queue]\ntimeout_ms = 5\ntimeout_action = "delay"\n', r"\[queue\] timeout_action: for a model with \[sequence\]"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, config: str, reason: str) -> None:
    write_sum(tmp_path, config if "[sequence]" in config else SEQUENCE + config)
    async with serving(tmp_path) as registry:
        assert registry.find_reason("sum", reason)
