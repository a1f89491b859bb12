"""Models on a GPU, over a fake one: lanes as the dispatcher sees them, and what becomes of a model whose GPU fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from core_grpc.backends import load_backend
from core_grpc.backends.base import EngineTraits, Gpus, ModelSource, Placement
from core_grpc.backends.cuda.device import CudaDevice
from core_grpc.backends.cuda.model import CudaInstances
from core_grpc.data_plane import DataPlane
from core_grpc.errors import BackendFailed, GatewayError, ModelLoadFailed, ModelNotReady
from core_grpc.lifecycle import MODEL_STEPS, SERVER_STEPS, Lifecycle, ModelState, ServerState
from core_grpc.models.instances import request_instance
from core_grpc.models.resident_size import resident_bytes
from core_grpc.observability.tracing import Tracer
from core_grpc.scheduler.padding import BatchForm
from core_grpc.settings import NodeSettings
from core_grpc.types import Array, Datatype, InferRequest, TensorSpec
from tests.support.fake_cuda import FakeCuda
from tests.support.fake_executors import FakeExecutor
from tests.support.models import onnx_model, write_identity, write_onnx
from tests.support.serving import Served, eventually, serving

ILLEGAL_ADDRESS = 700


class FakeGpuModel(CudaInstances):
    """Y = 2 X + 1 on the fake GPU."""

    inputs = (TensorSpec("X", Datatype.FP32, (-1, 4)),)
    outputs = (TensorSpec("Y", Datatype.FP32, (-1, 4)),)


class FakeGpuBackend:
    """In the place of ONNX Runtime, with one GPU."""

    platform = "onnxruntime_onnx"
    traits = EngineTraits(shares_copy=True, computes_on_device=True)

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.device = CudaDevice(self.cuda)
        self.executors: list[FakeExecutor] = []

    def gpus(self) -> Gpus:
        return Gpus(1)

    def load(self, source: ModelSource) -> FakeGpuModel:
        return FakeGpuModel(self.create, source.placements, device=lambda _number: self.device)

    def create(self, placement: Placement, stream: int) -> FakeExecutor:
        assert placement.kind == "gpu"
        assert stream in self.cuda.streams
        self.executors.append(FakeExecutor(self.cuda))
        return self.executors[-1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpuBackend:
    backend = FakeGpuBackend()
    monkeypatch.setattr("core_grpc.models.loading.load_backend", lambda name: backend if name == "onnxruntime" else load_backend(name))
    return backend


def write_gpu_model(repository: Path, name: str, config: str = "") -> None:
    shape = (Datatype.FP32, ("batch", 4))
    write_onnx(repository, name, onnx_model([], {"X": shape}, {"X": shape}), f"max_batch_size = 4\n{config}")


async def ask(served: Served, name: str, value: float, rows: int = 1) -> float:
    model = served.find(name)
    execution = await model.infer({"X": np.full((rows, 4), value, np.float32)}, rows)
    assert execution.outputs["Y"].shape == (rows, 4)
    return float(execution.outputs["Y"][-1, -1])


@asynccontextmanager
async def served_by(repository: Path) -> AsyncIterator[tuple[Served, DataPlane]]:
    async with serving(repository) as served:
        lifecycle = Lifecycle(SERVER_STEPS, ServerState.STARTING)
        lifecycle.to(ServerState.SERVING)
        with ThreadPoolExecutor(1) as pool:
            yield served, DataPlane(served, served.control, lifecycle, NodeSettings(), pool, Tracer("", pool))


async def test_an_instance_has_two_lanes_and_one_context(gpu: FakeGpuBackend, tmp_path: Path) -> None:
    write_gpu_model(tmp_path, "m", "[instances]\ncount = 2")
    async with serving(tmp_path) as served:
        values = await asyncio.gather(*(ask(served, "m", value, rows=1 + value % 4) for value in range(200)))
        assert values == [2 * value + 1 for value in range(200)]
        assert len(gpu.executors) == 2
        assert all(executor.enqueued for executor in gpu.executors)
    gpu.device.pool.close()
    assert gpu.cuda.is_clean


async def test_each_instance_on_a_gpu_takes_the_weights_again(gpu: FakeGpuBackend, tmp_path: Path) -> None:
    write_gpu_model(tmp_path, "one")
    write_gpu_model(tmp_path, "three", "[instances]\ncount = 3")
    async with serving(tmp_path) as served:
        found = [(slot.entry, served.find(slot.entry.name).config.instances) for slot in served.all_slots()]
        assert len(gpu.executors) == 4
    taken = {entry.name: await asyncio.to_thread(resident_bytes, entry, groups) for entry, groups in found}
    assert taken["three"] == {"gpu:0": 3 * taken["one"]["gpu:0"]}


class Staged:
    """An instance with memory of its own for inputs; keeps what it is given."""

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 20, np.uint8)
        self.given: Mapping[str, Array] = {}

    def staging(self, name: str, nbytes: int) -> Array | None:
        return self.memory[:nbytes] if name == "X" else None

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.given = inputs
        return {"Y": inputs["X"].copy()}

    def close(self) -> None:
        """Holds nothing."""


class OneOf(NamedTuple):
    inputs: Mapping[str, Array]
    request: InferRequest | None = None
    is_abandoned: bool = False


@pytest.mark.parametrize("form", [BatchForm(), BatchForm(allowed_batch_sizes=(4,))], ids=["plain", "filled"])
def test_a_batch_is_put_together_in_the_instance_s_memory(form: BatchForm) -> None:
    instance = Staged()
    requests = [OneOf({"X": np.full((1, 8192), row, np.float32), "Z": np.full((1, 8192), row, np.float32)}) for row in range(3)]
    parts = request_instance(instance, (), form, has_batch_dimension=True).execute_requests(requests)
    assert [float(part["Y"][0, 0]) for part in parts if not isinstance(part, GatewayError)] == [0, 1, 2]
    assert instance.given["X"].ctypes.data == instance.memory.ctypes.data
    assert not np.may_share_memory(instance.given["Z"], instance.memory)


async def test_eng_17_a_sticky_error_takes_every_model_of_the_gpu_out_of_service(gpu: FakeGpuBackend, tmp_path: Path) -> None:
    write_gpu_model(tmp_path, "guilty")
    write_gpu_model(tmp_path, "other")
    write_identity(tmp_path, "on_cpu", {"X": ("FP32", [-1, 4])})
    async with served_by(tmp_path) as (served, plane):
        assert plane.ready()
        gpu.cuda.fail_next("run", ILLEGAL_ADDRESS)
        with pytest.raises(BackendFailed, match="cudaError700"):
            await ask(served, "guilty", 1)
        # No later than the answer: whoever was told can look.
        assert not plane.ready()
        for name in ("guilty", "other"):
            assert not plane.model_ready(name)
            with pytest.raises(ModelNotReady, match="GPU 0 has failed with cudaError700"):
                served.find(name)
        assert plane.model_ready("on_cpu")
        # A reload cannot help, and does not make the server ready.
        with pytest.raises(ModelLoadFailed, match="this node must be restarted"):
            await served.control.load("guilty")
        assert not plane.ready()


async def test_what_waits_when_the_gpu_fails_is_answered(gpu: FakeGpuBackend, tmp_path: Path) -> None:
    write_gpu_model(tmp_path, "m")
    async with serving(tmp_path) as served:
        gpu.cuda.fail_next("synchronize", ILLEGAL_ADDRESS)
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*(ask(served, "m", 1) for _ in range(50)), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BackendFailed)]
        assert len(failed) == 50 or {answer for answer in answers if answer not in failed} == {3.0}
        assert failed


async def test_a_gpu_that_fails_while_a_model_is_loading(gpu: FakeGpuBackend, tmp_path: Path) -> None:
    write_gpu_model(tmp_path, "m")
    async with serving(tmp_path) as served:
        model = served.find("m")
        lifecycle = Lifecycle(MODEL_STEPS, ModelState.LOADING)
        model.lifecycle = lifecycle
        model.device_failed("gone")
        assert lifecycle.state is ModelState.LOADING
        lifecycle.to(ModelState.READY)
        await eventually(lambda: lifecycle.state is ModelState.UNAVAILABLE)
        assert lifecycle.reason == "gone"
        assert gpu.device.fault == ""
