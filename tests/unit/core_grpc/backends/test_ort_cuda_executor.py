"""ONNX Runtime as an executor: real sessions on the CPU, in the place of a GPU's, under the real pipeline over a fake CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from core_grpc.backends.base import Gpus, ModelSource, Placement
from core_grpc.backends.cuda.device import CudaDevice
from core_grpc.backends.cuda.executor import OutputAllocator
from core_grpc.backends.cuda.pipeline import Pipeline
from core_grpc.backends.cuda.profiles import Shape
from core_grpc.backends.onnxruntime import gpu_model, sessions
from core_grpc.backends.onnxruntime.backend import OnnxRuntimeBackend
from core_grpc.backends.onnxruntime.cuda_executor import OrtDevice, OrtExecutor
from core_grpc.backends.onnxruntime.specs import tensors_of
from core_grpc.errors import BackendFailed, InvalidArgument, ModelLoadFailed
from core_grpc.types import Array, Datatype
from tests.support.fake_cuda import FakeCuda
from tests.support.models import onnx_model, write_onnx
from tests.support.serving import serving

GPU = Placement("gpu", 0)


class CpuInTheGpusPlace(OrtExecutor):
    """ONNX Runtime's CPU provider cannot wait for a stream of the fake's, so whatever is before a run in the stream is done first; a run
    whose outputs are bound is given to the stream instead."""

    def __init__(self, cuda: FakeCuda, session: Any, *, defers: bool) -> None:
        super().__init__(session, *tensors_of(session, ()), OrtDevice("cpu", 0), cuda.copy_within, can_record=defers)
        self.cuda = cuda
        self.defers = defers
        self.bound_runs = 0

    def enqueue(self, stream: int, allocator: OutputAllocator) -> None:
        self.bound_runs += bool(self._output_shapes)
        if self.defers and self._output_shapes:
            binding = self._binding(self._output_shapes)
            session, options = self._session, self._options
            self.cuda.run(stream, lambda: session.run_with_iobinding(binding, options))
        else:
            self.cuda.finish()
            super().enqueue(stream, allocator)

    def _run_unknown(self, stream: int, allocator: OutputAllocator) -> Mapping[str, Shape]:
        # The engine's own memory is host memory here: it is made the fake's for the copy out of it.
        copies: list[tuple[int, int, int]] = []
        self._copy_within = lambda to, source, nbytes, _stream: copies.append((to, source, nbytes))
        kept = self._session.io_binding
        bindings: list[Any] = []

        def keep() -> Any:
            bindings.append(kept())
            return bindings[-1]

        self._session.io_binding = keep
        try:
            found = super()._run_unknown(stream, allocator)
        finally:
            self._session.io_binding = kept
        for to, source, nbytes in copies:
            content = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
            self.cuda.run(stream, lambda to=to, content=content: self._write(to, content))  # type: ignore[misc]
        return found

    def _write(self, to: int, content: Array) -> None:
        self.cuda.view(to, content.shape, content.dtype)[...] = content


class Rig:
    def __init__(self, model: Any, *, defers: bool = True, graphs: int = 4) -> None:
        self.cuda = FakeCuda()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.executor = CpuInTheGpusPlace(self.cuda, session, defers=defers)
        self.pipeline = Pipeline(CudaDevice(self.cuda), lambda _stream: self.executor, graphs)
        self.lane = self.pipeline.open_lane()


def identity_of(datatype: Datatype) -> Any:
    shape = (datatype, ("batch", 3))
    return onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": shape}, {"Y": shape})


NUMERIC = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]


@pytest.mark.parametrize("datatype", NUMERIC)
def test_every_numeric_datatype_comes_back_exactly(datatype: Datatype) -> None:
    rig = Rig(identity_of(datatype))
    for turn in range(5):
        content = np.random.default_rng(turn).integers(0, 256, 6 * datatype.itemsize, np.uint8)
        given = (content % 2 if datatype is Datatype.BOOL else content).view(datatype.dtype).reshape(2, 3)
        got = rig.lane.execute({"X": given})["Y"]
        assert got.dtype == datatype.dtype
        assert got.tobytes() == given.tobytes()
    assert rig.lane.recorded_graphs == 1


def add_model() -> Any:
    shape = (Datatype.FP32, ("batch", 2))
    nodes = [helper.make_node("Add", ["A", "B"], ["sum"]), helper.make_node("Sub", ["A", "B"], ["difference"])]
    return onnx_model(nodes, {"A": shape, "B": shape}, {"sum": shape, "difference": shape})


@pytest.mark.parametrize("graphs", [0, 8])
def test_inputs_and_outputs_go_by_name(graphs: int) -> None:
    rig = Rig(add_model(), graphs=graphs)
    for turn in range(12):
        one, two = (np.random.default_rng(turn * 2 + part).normal(size=(1 + turn % 3, 2)).astype(np.float32) for part in range(2))
        got = rig.lane.execute({"B": two, "A": one})
        np.testing.assert_array_equal(got["sum"], one + two)
        np.testing.assert_array_equal(got["difference"], one - two)
    # Of the four times of each shape: the engine allocates the outputs itself, they are bound, that is recorded, and launched again.
    assert rig.executor.bound_runs == (9 if graphs == 0 else 6)


def non_zero_model() -> Any:
    return onnx_model([helper.make_node("NonZero", ["X"], ["Y"])], {"X": (Datatype.FP32, (1, 8))}, {"Y": (Datatype.INT64, (2, "count"))})


def test_eng_08_outputs_whose_size_depends_on_the_data() -> None:
    rig = Rig(non_zero_model(), defers=False)
    for count in (0, 1, 8, 3, 3, 1, 0, 8):
        values = np.zeros((1, 8), np.float32)
        values[0, :count] = 1
        got = rig.lane.execute({"X": values})["Y"]
        assert got.shape == (2, count)
        np.testing.assert_array_equal(got, np.array(np.nonzero(values)))
    assert rig.executor.bound_runs == 1, "once it was seen that the shape is not known, it is not tried again"


def test_what_the_engine_refuses_is_the_callers() -> None:
    table = helper.make_tensor("T", 1, [4], [0.0, 1.0, 2.0, 3.0])
    shapes: Mapping[str, Any] = {"I": (Datatype.INT64, ("batch",))}
    rig = Rig(
        onnx_model([helper.make_node("Gather", ["T", "I"], ["Y"])], shapes, {"Y": (Datatype.FP32, ("batch",))}, [table]), defers=False
    )
    assert rig.lane.execute({"I": np.array([3, 1])})["Y"].tolist() == [3, 1]
    with pytest.raises((InvalidArgument, BackendFailed), match=r"out of (data )?bounds"):
        rig.lane.execute({"I": np.array([4, 1])})
    assert rig.lane.execute({"I": np.array([2, 0])})["Y"].tolist() == [2, 0]


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """A machine with one GPU as the backend sees it; its sessions run on the CPU."""
    cuda = FakeCuda()
    device = CudaDevice(cuda)

    def executor(session: Any, _inputs: Any, _outputs: Any, _device: OrtDevice, _copy: Any, *, can_record: bool) -> OrtExecutor:
        return CpuInTheGpusPlace(cuda, session, defers=can_record)

    def session(path: Path, _placement: Placement, stream: int) -> tuple[Any, bool]:
        assert stream in cuda.streams
        return sessions.session_from_file(path, Placement(), 0), True

    monkeypatch.setattr(gpu_model, "OrtExecutor", executor)
    monkeypatch.setattr(gpu_model, "session_for_stream", session)
    monkeypatch.setattr(gpu_model, "cuda_device", lambda _number, **_budget: device)
    monkeypatch.setattr(OnnxRuntimeBackend, "gpus", lambda _self: Gpus(1))
    yield cuda
    device.pool.close()


async def test_a_model_on_a_gpu_and_on_the_cpu_at_once(one_gpu: FakeCuda, tmp_path: Path) -> None:
    config = 'max_batch_size = 4\n[[instances]]\nkind = "gpu"\n[[instances]]\nkind = "cpu"\n'
    write_onnx(tmp_path, "add", add_model(), config)
    async with serving(tmp_path) as served:
        model = served.find("add")
        for turn in range(40):
            inputs = {name: np.full((1 + turn % 4, 2), turn + part, np.float32) for part, name in enumerate("AB")}
            execution = await model.infer(inputs, 1 + turn % 4)
            assert execution.outputs["sum"].tolist() == (inputs["A"] + inputs["B"]).tolist()
        assert "copy_in" in one_gpu.calls
    assert [len(left) for left in (one_gpu.streams, one_gpu.pinned, one_gpu.graphs)] == [0, 0, 0]


async def test_a_model_with_text_does_without_the_pipeline(one_gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sessions.session_from_file
    monkeypatch.setattr(gpu_model, "session_from_file", lambda path, _placement, threads: real(path, Placement(), threads))
    shape = (Datatype.BYTES, ("batch", 1))
    write_onnx(tmp_path, "text", onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": shape}, {"Y": shape}))
    async with serving(tmp_path) as served:
        execution = await served.find("text").infer({"X": np.array([[b"abc"]], dtype=object)}, 1)
        assert execution.outputs["Y"].tolist() == [[b"abc"]]
    assert one_gpu.streams == {}


def test_without_a_gpu_the_load_says_so(tmp_path: Path) -> None:
    directory = write_onnx(tmp_path, "add", add_model())
    with pytest.raises(ModelLoadFailed, match=r"GPU 0 cannot be used: CUDA answered \w+ \(\d+\)"):
        OnnxRuntimeBackend().load(ModelSource("add", "1", directory, placements=(GPU,)))


@pytest.mark.parametrize("value", [-1, 1025, True, "2"])
def test_the_number_of_graphs_is_checked(value: Any, tmp_path: Path) -> None:
    directory = write_onnx(tmp_path, "add", add_model())
    with pytest.raises(ModelLoadFailed, match=r"model.toml: \[onnxruntime\] cuda_graphs: wanted 0 to 1024, got"):
        OnnxRuntimeBackend().load(ModelSource("add", "1", directory, {"cuda_graphs": value}))
