"""Processors and GPUs: what there is, and that instances stay where they are put."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from core_grpc.backends.cores import CAN_PIN, usable_cores
from core_grpc.backends.gpus import visible_count
from core_grpc.backends.instance_worker import InstanceWorker
from core_grpc.backends.onnxruntime.sessions import gpus_of
from core_grpc.errors import ModelLoadFailed
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.overrides import LoadOverride
from core_grpc.types import Datatype, InferRequest
from tests.support.models import onnx_model, write_identity, write_onnx
from tests.support.python_models import write_python_model
from tests.support.serving import serving

needs_pinning = pytest.mark.skipif(not CAN_PIN, reason="only Linux binds threads to processors")
TASKS = Path("/proc/self/task")


def processors_of(task: int) -> str:
    """What the kernel says: ``0-1``, ``3``."""
    lines = (TASKS / str(task) / "status").read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("Cpus_allowed_list"))


def tasks_on(core: int) -> set[int]:
    found = set()
    for path in TASKS.iterdir():
        try:
            if processors_of(int(path.name)) == str(core):
                found.add(int(path.name))
        except OSError:
            continue  # It ended meanwhile.
    return found


def write_matmul(repository: Path, config: str) -> None:
    weights = helper.make_tensor("W", 1, [4, 4], np.eye(4, dtype=np.float32).ravel())
    shape = (Datatype.FP32, ("batch", 4))
    model = onnx_model([helper.make_node("MatMul", ["X", "W"], ["Y"])], {"X": shape}, {"Y": shape}, [weights])
    write_onnx(repository, "matmul", model, config)


class Nothing:
    def close(self) -> None:
        """Holds nothing."""


@needs_pinning
async def test_a_worker_is_pinned_before_its_instance_is_made() -> None:
    core = usable_cores()[-1]
    seen: list[tuple[int, ...]] = []

    def create() -> Nothing:
        seen.append(usable_cores())
        return Nothing()

    worker = await InstanceWorker.start("m/1/0", create, (core,))
    assert seen == [(core,)]
    assert await worker.run(lambda _: processors_of(threading.get_native_id())) == str(core)
    await worker.close()
    with pytest.raises(OSError, match="Invalid argument"):
        await InstanceWorker.start("m/1/0", create, (60_000,))


@needs_pinning
async def test_onnx_runtimes_threads_are_pinned_with_their_instance(tmp_path: Path) -> None:
    core = usable_cores()[-1]
    before = tasks_on(core)
    write_matmul(tmp_path, f"[instances]\ncount = 2\ncores = [{core}]\n[onnxruntime]\nintra_op_threads = 3\n")
    async with serving(tmp_path) as served:
        assert (await served.find("matmul").infer({"X": np.ones((1, 4), np.float32)}, 1)).outputs["Y"].tolist() == [[1, 1, 1, 1]]
        by_name = {thread.name: thread.native_id for thread in threading.enumerate()}
        instances = {by_name["matmul/1/0"], by_name["matmul/1/1"]}
        pinned = tasks_on(core) - before
        assert instances <= pinned
        assert len(pinned) == 2 + 2, "two instances, and two threads of the session that they share"


@needs_pinning
async def test_groups_have_cores_of_their_own(tmp_path: Path) -> None:
    first, last = usable_cores()[0], usable_cores()[-1]
    write_matmul(tmp_path, f"[[instances]]\ncores = [{first}]\n[[instances]]\ncores = [{last}]\n")
    async with serving(tmp_path):
        by_name = {thread.name: thread.native_id or 0 for thread in threading.enumerate()}
        assert [processors_of(by_name[f"matmul/1/{index}"]) for index in (0, 1)] == [str(first), str(last)]


TELLS_ITS_PLACE = """
    import os
    import numpy as np

    class Model:
        def initialise(self, context):
            text = f"{context.kind} {context.device_id} {context.instance} {sorted(os.sched_getaffinity(0))}"
            self.told = {"Y": np.array([text.encode()], dtype=object)}

        def execute(self, request):
"""


@needs_pinning
@pytest.mark.parametrize("is_decoupled", [False, True])
async def test_a_python_model_is_told_its_place_and_pinned(tmp_path: Path, is_decoupled: bool) -> None:
    core = usable_cores()[-1]
    code = TELLS_ITS_PLACE + ("            yield self.told" if is_decoupled else "            return [self.told]")
    config = f"[python]\ndecoupled = {str(is_decoupled).lower()}\n[instances]\ncores = [{core}]"
    write_python_model(tmp_path, "told", code, config=config, inputs={"X": ("INT32", [1])}, outputs={"Y": ("BYTES", [1])})
    inputs = {"X": np.zeros(1, np.int32)}
    async with serving(tmp_path) as served:
        if is_decoupled:
            answers = [item.outputs["Y"] async for item in served.find_decoupled("told").stream(inputs, InferRequest("told", "", {}))]
        else:
            answers = [(await served.find("told").infer(inputs, 1)).outputs["Y"]]
    assert [answer.tolist() for answer in answers] == [[f"cpu 0 0 [{core}]".encode()]]


async def test_a_gpu_that_is_not_there_keeps_the_model_from_being_served(tmp_path: Path) -> None:
    write_matmul(tmp_path, '[instances]\nkind = "gpu"\n')
    write_identity(tmp_path, "same", {"X": ("FP32", [-1, 1])}, '[instances]\nkind = "gpu"\n')
    async with serving(tmp_path) as served:
        reasons = {entry.name: entry.reason for entry in served.entries()}
        assert reasons["matmul"].startswith('model.toml: [instances] kind: wanted "cpu" or "auto", because ONNX Runtime ')
        assert reasons["matmul"].endswith('CPUExecutionProvider, got "gpu"')
        assert reasons["same"].endswith('because the identity backend computes nothing, got "gpu"')
        with pytest.raises(ModelLoadFailed, match='wanted "cpu" or "auto"'):
            await served.control.load("matmul", LoadOverride(instances=(InstanceGroup(kind="gpu", devices=(0,)),)))
        await served.control.load("matmul", LoadOverride(instances=(InstanceGroup(count=2, kind="cpu"),)))
        assert served.find("matmul").config.instances == (InstanceGroup("matmul_0", 2, "cpu"),)
        await asyncio.gather(*(served.find("matmul").infer({"X": np.ones((1, 4), np.float32)}, 1) for _ in range(4)))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, 3), ("", 0), ("0", 1), ("2,0", 2), ("-1", 0), ("0,7,1", 1), ("GPU-1b3f,1", 2), ("0,1,2,0", 3), ("all", 0)],
)
def test_cuda_visible_devices(visible: str | None, expected: int) -> None:
    files = ["null", "nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"]
    assert visible_count(files, visible) == expected


def test_what_onnx_runtime_can_use() -> None:
    assert gpus_of(["CUDAExecutionProvider", "CPUExecutionProvider"], 2).count == 2
    assert gpus_of(["CUDAExecutionProvider", "CPUExecutionProvider"], 0).absence == "this machine has no GPU"
    assert gpus_of(["CPUExecutionProvider"], 2).count == 0
