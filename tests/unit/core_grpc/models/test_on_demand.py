"""Models that come when a request asks for them and go when a budget wants their room: no answer is lost or wrong on the way."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from core_grpc.data_plane import DataPlane
from core_grpc.errors import DeadlineExpired, GatewayError, ModelLoadFailed, ModelNotReady, NotFound, QueueFull
from core_grpc.lifecycle import SERVER_STEPS, Lifecycle, ModelState, ServerState
from core_grpc.models import residency
from core_grpc.models.model import Model
from core_grpc.models.overrides import LoadOverride
from core_grpc.observability.tracing import Tracer
from core_grpc.settings import ModelsSettings, NodeSettings
from core_grpc.types import Datatype, InferRequest, Tensor
from tests.support import models as fixtures
from tests.support.python_models import write_python_model
from tests.support.serving import Served, serving

NAMES = ("a", "b", "c", "d", "e")
FP32 = (Datatype.FP32, ("batch", 1))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No uploaded files, and no instance's thread."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert not list(temporary.iterdir())
    until = time.monotonic() + 5
    while running := [thread.name for thread in threading.enumerate() if thread.name.split("/")[0] in NAMES]:
        assert time.monotonic() < until, f"{running} run on"
        time.sleep(0.01)


def write_plus(repository: Path, name: str, number: int, config: str = "", version: str = "1") -> None:
    """Y = X + number, so that an answer tells who gave it."""
    constant = helper.make_tensor("C", 1, [1, 1], [float(number)])
    model = fixtures.onnx_model([helper.make_node("Add", ["X", "C"], ["Y"])], {"X": FP32}, {"Y": FP32}, [constant])
    fixtures.write_onnx(repository, name, model, config, version)


def write_all(repository: Path, names: str, config: str = "") -> None:
    for name in names:
        write_plus(repository, name, NAMES.index(name), config)


class Plane:
    """A data plane over a loaded repository."""

    def __init__(self, served: Served, settings: ModelsSettings) -> None:
        self.served = served
        pool = ThreadPoolExecutor(1)
        lifecycle = Lifecycle(SERVER_STEPS, ServerState.STARTING)
        lifecycle.to(ServerState.SERVING)
        self.plane = DataPlane(served, served.control, lifecycle, NodeSettings(models=settings), pool, Tracer("", pool))

    async def ask(self, name: str, version: str = "", within_s: float | None = None) -> float:
        response = await self.plane.infer(request(name, version, within_s))
        assert response.model_name == name
        return float(response.outputs["Y"].array[0, 0])

    def reasons(self) -> dict[str, str]:
        """State and reason by name and version, ``loaded`` where the model is there and answers."""
        return {
            f"{slot.entry.name}{slot.entry.version}": "loaded"
            if slot.resident and slot.lifecycle.state is ModelState.READY
            else f"{slot.lifecycle.state} {slot.lifecycle.reason}"
            for slot in self.served.all_slots()
        }

    async def settled(self) -> None:
        """Returns when the budget holds."""
        settling = self.served.control.on_demand.settle()
        assert settling
        await settling

    def loaded(self) -> str:
        return "".join(slot.entry.name for slot in self.served.all_slots() if slot.resident)


def request(name: str, version: str = "", within_s: float | None = None) -> InferRequest:
    deadline = None if within_s is None else time.monotonic() + within_s
    return InferRequest(name, version, {"X": Tensor(Datatype.FP32, np.zeros((1, 1), np.float32))}, deadline=deadline)


@asynccontextmanager
async def plane(repository: Path, settings: ModelsSettings) -> AsyncIterator[Plane]:
    async with serving(repository, settings) as served:
        yield Plane(served, settings)


@contextmanager
def in_hand(model: Model) -> Iterator[None]:
    """As long as a request has it."""
    model.users += 1
    try:
        yield
    finally:
        model.release()


async def turns(count: int = 5) -> None:
    """Lets what can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def loads(caplog: pytest.LogCaptureFixture, name: str) -> int:
    return sum(record.getMessage().startswith(f"model {name} version 1 is ready") for record in caplog.records)


async def test_the_least_recently_used_goes_and_comes_back(tmp_path: Path) -> None:
    write_all(tmp_path, "abc")
    async with plane(tmp_path, ModelsSettings(max_resident_models=2)) as gate:
        assert gate.reasons() == {"a1": "loaded", "b1": "loaded", "c1": "READY on demand"}
        assert await gate.ask("a") == 0
        assert await gate.ask("c") == 2
        assert gate.reasons() == {"a1": "loaded", "b1": "READY on demand", "c1": "loaded"}
        assert await gate.ask("b") == 1
        assert gate.loaded() == "bc"
        assert await gate.ask("a", "1") == 0
        assert gate.loaded() == "ab"


async def test_what_went_still_answers_for_its_metadata(tmp_path: Path) -> None:
    write_all(tmp_path, "ab", 'description = "adds"')
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        before = await gate.plane.model_metadata("a")
        await gate.ask("b")
        assert gate.loaded() == "b"
        assert gate.plane.model_ready("a")
        assert await gate.plane.model_metadata("a") == before
        assert (await gate.plane.model_config("a")).config.description == "adds"
        assert (await gate.plane.spec("a", "1")).description == "adds"
        assert [(entry.state, entry.spec is not None) for entry in gate.plane.models()] == [(ModelState.READY, True)] * 2
        assert gate.loaded() == "b", "nobody was loaded to say so"


async def test_nothing_is_loaded_at_start_on_demand(tmp_path: Path) -> None:
    write_all(tmp_path, "ab")
    write_all(tmp_path, "c", "pinned = true")
    fixtures.write_badload(tmp_path)
    async with plane(tmp_path, ModelsSettings(startup="on_demand", pinned="b, nobody")) as gate:
        assert gate.reasons() == {"a1": "READY on demand", "b1": "loaded", "badload1": "READY on demand", "c1": "loaded"}
        assert gate.plane.ready()
        assert gate.plane.model_ready("a")
        assert gate.plane.versions("a") == ["1"]
        assert gate.loaded() == "bc"
        assert (await gate.plane.model_metadata("a")).inputs[0].name == "X"
        assert gate.loaded() == "abc", "its inputs are read from the model"
        assert await gate.ask("a") == 0
        for version in ("2", "x"):
            with pytest.raises(GatewayError):
                await gate.ask("a", version)
        with pytest.raises(ModelNotReady, match="could not be loaded on demand"):
            await gate.ask("badload")
        assert not gate.plane.model_ready("badload")


@pytest.mark.parametrize("through", ["config", "setting"])
async def test_pinned_models_stay(tmp_path: Path, through: str) -> None:
    write_all(tmp_path, "a", "pinned = true" if through == "config" else "")
    write_all(tmp_path, "bc")
    settings = ModelsSettings(max_resident_models=2, pinned="a" if through == "setting" else "")
    async with plane(tmp_path, settings) as gate:
        for name in "bcbc":
            assert await gate.ask(name) == NAMES.index(name)
            assert gate.loaded() == f"a{name}"


async def test_no_room_beside_what_is_pinned(tmp_path: Path) -> None:
    write_all(tmp_path, "ab", "pinned = true")
    write_all(tmp_path, "c")
    async with plane(tmp_path, ModelsSettings(max_resident_models=2)) as gate:
        with pytest.raises(ModelNotReady, match=r"'c' version 1 .* no room: models\.max_resident_models is 2"):
            await gate.ask("c")
        assert gate.loaded() == "ab"


async def test_work_in_hand_keeps_a_model(tmp_path: Path) -> None:
    write_all(tmp_path, "abc")
    async with plane(tmp_path, ModelsSettings(max_resident_models=2)) as gate:
        with in_hand(gate.served.find("b")):
            with in_hand(gate.served.find("a")):
                with pytest.raises(DeadlineExpired, match="before model 'c' was loaded"):
                    await gate.ask("c", within_s=0.05)
                waiting = asyncio.create_task(gate.ask("c"))
                await turns()
                assert gate.loaded() == "ab"
            assert await waiting == 2
            assert gate.loaded() == "bc", "a was used after b, but b has work"


async def test_one_load_for_all_who_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write_all(tmp_path, "ab")
    async with plane(tmp_path, ModelsSettings(startup="on_demand", max_resident_models=1)) as gate:
        for count, name in enumerate("abab", 2):
            assert set(await asyncio.gather(*(gate.ask(name) for _ in range(50)))) == {NAMES.index(name)}
            assert loads(caplog, name) == count // 2


async def test_who_waits_is_bounded(tmp_path: Path) -> None:
    write_all(tmp_path, "a")
    write_all(tmp_path, "b", "[queue]\nmax_rows = 2")
    write_all(tmp_path, "c", "[queue]\nmax_bytes = 4")
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        with in_hand(gate.served.find("a")):
            waiting = [asyncio.create_task(gate.ask(name)) for name in "bbc"]
            await turns()
            with pytest.raises(QueueFull, match=r"requests wait until model 'b' is loaded: the limit is 2"):
                await gate.ask("b")
            with pytest.raises(QueueFull, match=r"bytes wait until model 'c' is loaded: the limit is 4"):
                await gate.ask("c")
        assert await asyncio.gather(*waiting) == [1, 1, 2]


async def test_who_leaves_hurts_nobody_and_is_not_loaded_for(tmp_path: Path) -> None:
    write_all(tmp_path, "abc")
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        with in_hand(gate.served.find("a")):
            leaving, staying = asyncio.create_task(gate.ask("b")), asyncio.create_task(gate.ask("b"))
            alone = asyncio.create_task(gate.ask("c"))
            await turns()
            leaving.cancel()
            alone.cancel()
            results = await asyncio.gather(leaving, alone, return_exceptions=True)
            assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        assert await staying == 1
        await turns(50)
        assert gate.loaded() == "b"


async def test_a_failed_load_is_told_and_tried_again_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, "ab")
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        await gate.ask("b")
        file = tmp_path / "a" / "1" / "model.onnx"
        good = file.read_bytes()
        file.write_bytes(b"junk")
        results = await asyncio.gather(*(gate.ask("a") for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [ModelNotReady] * 3
        assert "model 'a' version 1 could not be loaded on demand: model.onnx is not" in str(results[0])
        assert gate.reasons()["a1"].startswith("UNAVAILABLE the load on demand failed: model.onnx")
        file.write_bytes(good)
        with pytest.raises(ModelNotReady, match="UNAVAILABLE, the load on demand failed"):
            await gate.ask("a")
        assert not gate.plane.model_ready("a")
        await gate.served.control.load("a")
        assert await gate.ask("a") == 0
        await gate.ask("b")

        monkeypatch.setattr(residency, "FIRST_PAUSE_S", 0.0)
        file.write_bytes(b"junk")
        with pytest.raises(ModelNotReady):
            await gate.ask("a")
        while not gate.plane.model_ready("a"):
            await turns()
        assert gate.reasons()["a1"].startswith("READY on demand; the last load failed: model.onnx")
        file.write_bytes(good)
        assert await gate.ask("a") == 0


async def test_what_is_unloaded_in_the_pause_is_not_offered_again(tmp_path: Path) -> None:
    write_all(tmp_path, "ab")
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        (tmp_path / "a" / "1" / "model.onnx").write_bytes(b"junk")
        await gate.ask("b")
        with pytest.raises(ModelNotReady):
            await gate.ask("a")
        on_demand = gate.served.control.on_demand
        ((slot, pause),) = on_demand._pauses.items()
        await gate.served.control.unload("a")
        pause.cancel()
        on_demand._offer_again(slot, "the pause is over")
        assert gate.reasons()["a1"] == "UNAVAILABLE unloaded"


async def test_counters_go_on(tmp_path: Path) -> None:
    write_all(tmp_path, "ab")
    async with plane(tmp_path, ModelsSettings(startup="on_demand", max_resident_models=1)) as gate:
        for name in "aababb":
            await gate.ask(name)
        with pytest.raises(DeadlineExpired):
            await gate.ask("a", within_s=0.0)
        counted = {spec.name: (stats.success.count, stats.execution_count, stats.fail.count) for spec, stats in gate.plane.statistics()}
        assert counted == {"a": (3, 3, 1), "b": (3, 3, 0)}
        (_, stats), *_ = gate.plane.statistics("a")
        assert stats.queue.ns > 0
        assert stats.inference_count == 3
        assert stats.batches[1].count == 3


async def test_a_budget_in_bytes(tmp_path: Path) -> None:
    write_all(tmp_path, "ab", "resident_bytes = 400")
    write_all(tmp_path, "c", "resident_bytes = 800")
    write_all(tmp_path, "d", "resident_bytes = 1001")
    async with plane(tmp_path, ModelsSettings(max_resident_bytes=1000)) as gate:
        assert gate.loaded() == "ab"
        await gate.ask("c")
        assert gate.loaded() == "c"
        await gate.ask("b")
        await gate.ask("a")
        assert gate.loaded() == "ab"
        with pytest.raises(ModelNotReady, match=r"models\.max_resident_bytes 1000"):
            await gate.ask("d")
        assert gate.loaded() == "ab"


async def test_sizes_are_estimated_from_files(tmp_path: Path) -> None:
    write_all(tmp_path, "ab")
    (tmp_path / "b" / "1" / "weights.bin").write_bytes(bytes(2_000_000))
    async with plane(tmp_path, ModelsSettings(max_resident_bytes=4_000_000)) as gate:
        small, large = (gate.served.slots(name)[0].nbytes["cpu"] for name in "ab")
        assert 0 < small < 1_000_000
        assert 2_000_000 < large < 4_000_000


async def test_unload_load_and_reload_beside_the_budget(tmp_path: Path) -> None:
    write_all(tmp_path, "abc")
    async with plane(tmp_path, ModelsSettings(max_resident_models=2)) as gate:
        await gate.served.control.unload("c")
        with pytest.raises(NotFound):
            await gate.ask("c")
        with in_hand(gate.served.find("a")), in_hand(gate.served.find("b")):
            await gate.served.control.load("c")
            assert gate.loaded() == "abc", "who loads is given what he asks for"
        assert await gate.ask("c") == 2
        await gate.settled()
        assert "c" in gate.loaded()
        for name in "abc":
            await gate.served.control.load(name)
            assert name in gate.loaded()
            assert await gate.ask(name) == NAMES.index(name)


async def test_who_waits_when_the_model_is_unloaded_or_changed(tmp_path: Path) -> None:
    write_all(tmp_path, "abc")
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        for name in "bca":
            await gate.ask(name)
        with in_hand(gate.served.find("a")):
            unloaded, changed = asyncio.create_task(gate.ask("b")), asyncio.create_task(gate.ask("c"))
            await turns()
            await gate.served.control.unload("b")
            await gate.served.control.load("c", LoadOverride(max_batch_size=3))
        with pytest.raises(NotFound, match="unloaded"):
            await unloaded
        with pytest.raises(ModelNotReady, match="was replaced by another one"):
            await changed
        assert await gate.ask("c") == 2


async def test_uploaded_files_come_back(tmp_path: Path) -> None:
    write_all(tmp_path, "ab")
    content = (tmp_path / "b" / "1" / "model.onnx").read_bytes()
    async with plane(tmp_path, ModelsSettings(max_resident_models=1)) as gate:
        await gate.served.control.load("a", LoadOverride(files={"7/model.onnx": content}))
        for _ in range(2):
            assert await gate.ask("b") == 1
            assert gate.loaded() == "b"
            assert await gate.ask("a", "7") == 1


async def test_versions_go_one_by_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_plus(tmp_path, "a", number, version=str(number))
    (tmp_path / "a" / "model.toml").write_text('versions = "all"')
    async with plane(tmp_path, ModelsSettings(startup="on_demand", max_resident_models=1)) as gate:
        for version in ("2", "", "1", "3", "", "2"):
            assert await gate.ask("a", version) == int(version or 3)
            assert len(gate.loaded()) == 1
        assert gate.plane.versions("a") == ["1", "2", "3"]


async def test_a_decoupled_model_streams_on_demand(tmp_path: Path) -> None:
    code = """
        class Model:
            def execute(self, request):
                for number in range(3):
                    yield {"Y": request.inputs["X"] + number}
    """
    tensors = {"X": ("FP32", [-1, 1])}
    write_python_model(tmp_path, "a", code, inputs=tensors, outputs={"Y": tensors["X"]}, config="[python]\ndecoupled = true")
    write_all(tmp_path, "b")
    async with plane(tmp_path, ModelsSettings(startup="on_demand", max_resident_models=1)) as gate:
        for _ in range(2):
            assert gate.plane.is_decoupled("a")
            answers = [float(answer.outputs["Y"].array[0, 0]) async for answer in gate.plane.stream(request("a"))]
            assert answers == [0, 1, 2]
            assert await gate.ask("b") == 1
            assert gate.loaded() == "b"
        (_, stats), *_ = gate.plane.statistics("a")
        assert stats.success.count == 2


async def test_a_pipeline_and_the_models_of_its_steps(tmp_path: Path) -> None:
    write_all(tmp_path, "bc")
    (tmp_path / "a" / "1").mkdir(parents=True)
    tensors = "".join(f'[{role}]\ndatatype = "FP32"\nshape = [-1, 1]\n' for role in ("input.X", "output.Y"))
    steps = '[[step]]\nmodel = "b"\ninputs = { X = "X" }\noutputs = { Y = "between" }\n'
    steps += '[[step]]\nmodel = "c"\ninputs = { X = "between" }\noutputs = { Y = "Y" }\n'
    (tmp_path / "a" / "model.toml").write_text(f"max_batch_size = 8\n{tensors}{steps}")
    for settings in (ModelsSettings(startup="on_demand"), ModelsSettings(max_resident_models=1)):
        async with plane(tmp_path, settings) as gate:
            assert gate.reasons()["a1"] == "READY on demand"
            assert gate.plane.model_ready("a")
            for _ in range(2):
                assert await gate.ask("a") == 3, "b adds 1, c adds 2"
                assert gate.loaded() == ("ac" if settings.max_resident_models else "abc")
            counted = {spec.name: stats.success.count for spec, stats in gate.plane.statistics()}
            assert counted == {"a": 2, "b": 2, "c": 2}


async def test_pipelines_on_demand_that_cannot_be(tmp_path: Path) -> None:
    write_all(tmp_path, "d")
    for name, of_step in (("a", "b"), ("b", "a"), ("c", "nope")):
        (tmp_path / name / "1").mkdir(parents=True)
        step = f'[[step]]\nmodel = "{of_step}"\ninputs = {{ X = "X" }}\noutputs = {{ Y = "Y" }}\n'
        (tmp_path / name / "model.toml").write_text(f"[input.X]\n[output.Y]\n{step}")
    async with plane(tmp_path, ModelsSettings(startup="on_demand")) as gate:
        for name, reason in (("a", "steps of each other"), ("c", "no such model")):
            with pytest.raises(ModelNotReady, match=f"could not be loaded on demand: .*{reason}"):
                await gate.ask(name)
            assert gate.reasons()[f"{name}1"].startswith("UNAVAILABLE")


async def test_stop_while_models_are_on_their_way(tmp_path: Path) -> None:
    write_all(tmp_path, "abcd")
    async with plane(tmp_path, ModelsSettings(max_resident_models=2)) as gate:
        waiting = [asyncio.create_task(gate.ask(name)) for name in "cdab"]
        await turns()
        await gate.served.control.close()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, float | GatewayError), result


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_of_requests_loads_and_unloads(tmp_path: Path, seed: int) -> None:
    """Each answer is that of the model that was asked, nobody is turned away but by an unload, and the budget holds in the end."""
    dice = random.Random(seed)
    write_all(tmp_path, "abcde")
    async with plane(tmp_path, ModelsSettings(max_resident_models=2, load_threads=2)) as gate:

        async def ask() -> None:
            for _ in range(25):
                name = dice.choice(NAMES)
                try:
                    assert await gate.ask(name, dice.choice(["", "1"])) == NAMES.index(name)
                except (NotFound, ModelNotReady):
                    assert name == "e"

        async def change() -> None:
            for _ in range(12):
                await gate.served.control.unload("e")
                await turns(dice.randrange(50))
                await gate.served.control.load(dice.choice("abe"))
                await gate.served.control.load("e")
                with pytest.raises(ModelLoadFailed):
                    await gate.served.control.load("e", LoadOverride(files={"6/model.onnx": b"junk"}))

        await asyncio.gather(change(), *(ask() for _ in range(4)))
        await gate.settled()
        for name in NAMES:
            assert await gate.ask(name) == NAMES.index(name)
        assert len(gate.loaded()) == 2
