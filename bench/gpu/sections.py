"""The parts of the GPU report that ask whether answers are right. Each gives Markdown, or fails with what went wrong."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto

from bench.gpu import node, onnx_models
from bench.gpu.raw_loop import ort_pipeline
from core_grpc.types import Datatype

_ONNX_TYPES: Mapping[Datatype, int] = {
    Datatype.BOOL: TensorProto.BOOL,
    Datatype.INT8: TensorProto.INT8,
    Datatype.INT16: TensorProto.INT16,
    Datatype.INT32: TensorProto.INT32,
    Datatype.INT64: TensorProto.INT64,
    Datatype.UINT8: TensorProto.UINT8,
    Datatype.UINT16: TensorProto.UINT16,
    Datatype.UINT32: TensorProto.UINT32,
    Datatype.UINT64: TensorProto.UINT64,
    Datatype.FP16: TensorProto.FLOAT16,
    Datatype.BF16: TensorProto.BFLOAT16,
    Datatype.FP32: TensorProto.FLOAT,
    Datatype.FP64: TensorProto.DOUBLE,
    Datatype.BYTES: TensorProto.STRING,
}

_FLOAT_DRIFT = 5e-3
"""FP32 products are computed in TF32 on the GPU, with ten bits of mantissa."""


def reference(model_file: Path) -> onnxruntime.InferenceSession:
    """The model on the CPU."""
    return onnxruntime.InferenceSession(str(model_file), providers=["CPUExecutionProvider"])


def datatypes() -> str:
    """Every datatype there and back, bit by bit, through the data plane."""
    with tempfile.TemporaryDirectory() as folder:
        for datatype, onnx_type in _ONNX_TYPES.items():
            onnx_models.write(
                Path(folder), datatype.lower(), onnx_models.identity(onnx_type), 'max_batch_size = 8\n[instances]\nkind = "gpu"'
            )
        exact = node.run(lambda: _datatypes(Path(folder)))
    wrong = [name for name, is_exact in exact.items() if not is_exact]
    if wrong:
        raise AssertionError(f"not bit by bit the same: {', '.join(wrong)}")
    return f"{len(exact)} datatypes, each 40 batches of 1 to 8 rows: all bit by bit the same ({', '.join(exact)})."


async def _datatypes(folder: Path) -> dict[str, bool]:
    exact = {}
    async with node.served(folder) as (plane, _):
        for datatype in _ONNX_TYPES:
            answers = []
            for turn in range(40):
                given = _values(datatype, 1 + turn % 8, turn)
                answer = (await plane.infer(node.request(datatype.lower(), X=given))).outputs["Y"].array
                answers.append(answer.tolist() == given.tolist() if datatype is Datatype.BYTES else answer.tobytes() == given.tobytes())
            exact[datatype.value] = all(answers)
    return exact


def _values(datatype: Datatype, rows: int, seed: int) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    if datatype is Datatype.BYTES:
        texts = np.empty((rows, 3), dtype=object)
        texts.reshape(-1)[:] = [str(value).encode() for value in random.integers(0, 1000, rows * 3)]
        return texts
    content = random.integers(0, 256, rows * 3 * datatype.itemsize, np.uint8)
    return (content % 2 if datatype is Datatype.BOOL else content).view(datatype.dtype).reshape(rows, 3)


def dynamic_shapes() -> str:
    """Shapes that vary from batch to batch, and outputs whose size the data decide, against the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        perceptron = onnx_models.write(Path(folder), "perceptron", onnx_models.perceptron(), "")
        non_zero = onnx_models.write(Path(folder), "non_zero", onnx_models.non_zero(), "")
        drift = _perceptron_drift(perceptron)
        counts = _non_zero_counts(non_zero)
    if drift > _FLOAT_DRIFT:
        raise AssertionError(f"drift of {drift:.2e}")
    return (
        f"600 batches of 1 to 8 rows and lengths 4 to 256 against the CPU: largest relative drift {drift:.1e} (TF32).  \n"
        f"Outputs whose size depends on the data, {counts} batches with 0 to 100,000 hits in turn: exact."
    )


def _perceptron_drift(model_file: Path) -> float:
    session, lane, random = reference(model_file), ort_pipeline(model_file).open_lane(), np.random.default_rng(0)
    drift = 0.0
    for _ in range(600):
        values = random.normal(size=(random.integers(1, 9), random.integers(4, 257), 256)).astype(np.float32)
        (expected,) = session.run(None, {"X": values})
        got = lane.execute({"X": values})["Y"]
        drift = max(drift, float(np.abs(got - expected).max() / np.abs(expected).max()))
    lane.close()
    return drift


def _non_zero_counts(model_file: Path) -> int:
    lane = ort_pipeline(model_file).open_lane()
    counts = (0, 1, 1000, 100_000, 1, 0, 5, 100_000, 1000)
    for count in counts:
        values = np.zeros((1, 100_000), np.float32)
        values[0, :count] = 1
        got = lane.execute({"X": values})["Y"]
        if not np.array_equal(got, np.array(np.nonzero(values))):
            raise AssertionError(f"{count} hits: got shape {got.shape}")
    lane.close()
    return len(counts)


def concurrency() -> str:
    """64 callers on 4 instances of ResNet-50 FP16, each with its own image; every answer against FP32 on the CPU."""
    images = np.random.default_rng(3).integers(0, 256, (64, *onnx_models.IMAGE), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        config = 'max_batch_size = 16\n[instances]\nkind = "gpu"\ncount = 4'
        onnx_models.write(Path(folder, "served"), "resnet50", onnx_models.resnet50(), config)
        single = onnx_models.write(Path(folder, "reference"), "resnet50", onnx_models.resnet50(np.float32), "")
        (expected,) = reference(single).run(None, {"image": images})
        load, drift = node.run(lambda: _concurrency(Path(folder, "served"), images, expected))
    if load.wrong:
        raise AssertionError(f"{load.wrong} of {load.rows} answers were nearer to another caller's reference than to their own")
    between = min(np.abs(one - other).max() for i, one in enumerate(expected) for other in expected[:i])
    return (
        f"{load.rows} answers: every one is nearest to its own caller's reference. Largest difference from it "
        f"{drift:.1e} in a probability; the references of two callers differ by at least {between:.1e}."
    )


async def _concurrency(folder: Path, images: NDArray[Any], expected: NDArray[Any]) -> tuple[node.Load, float]:
    drift = 0.0
    async with node.served(folder) as (plane, _):

        async def ask(caller: int, _turn: int) -> tuple[int, bool]:
            nonlocal drift
            response = await plane.infer(node.request("resnet50", image=images[caller : caller + 1]))
            distances = np.abs(expected - response.outputs["probabilities"].array).max(axis=1)
            drift = max(drift, float(distances[caller]))
            return 1, int(distances.argmin()) == caller

        return await node.Load().press(64, 10, ask), drift


def leaks() -> str:
    """10,000 requests of changing shapes after a settling in; memory of the GPU and of the process before and after."""
    with tempfile.TemporaryDirectory() as folder:
        onnx_models.write(Path(folder), "perceptron", onnx_models.perceptron(), 'max_batch_size = 8\n[instances]\nkind = "gpu"')
        marks = node.run(lambda: _leaks(Path(folder)))
    first, last = marks[0], marks[-1]
    rows = "\n".join(
        f"| {mark['requests']:,} | {mark['gpu_mib']:.0f} | {mark['rss_mib']:.0f} | {mark['threads']} | {mark['files']} |" for mark in marks
    )
    table = f"| requests | GPU MiB in use | resident MiB | threads | open files |\n|---|---|---|---|---|\n{rows}"
    grown = last["gpu_mib"] - first["gpu_mib"], last["rss_mib"] - first["rss_mib"]
    return f"{table}\n\nFrom the first mark to the last: GPU {grown[0]:+.0f} MiB, process {grown[1]:+.1f} MiB."


async def _leaks(folder: Path) -> list[dict[str, float]]:
    random = np.random.default_rng(5)
    marks = []
    async with node.served(folder) as (plane, _):
        for turn in range(7):
            asked = [
                node.request("perceptron", X=np.ones((random.integers(1, 9), random.integers(4, 257), 256), np.float32))
                for _ in range(2000)
            ]
            for start in range(0, 2000, 20):
                await asyncio.gather(*(plane.infer(request) for request in asked[start : start + 20]))
            if turn >= 1:
                marks.append({"requests": (turn + 1) * 2000, **_in_use()})
    return marks


def _in_use() -> dict[str, float]:
    from cuda.bindings import runtime  # noqa: PLC0415 (only where there is a GPU)

    _, free, total = runtime.cudaMemGetInfo()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "gpu_mib": (total - free) / 2**20,
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


def sticky_error() -> str:
    """A kernel that writes where it must not: the node says so at once, and a new process serves again."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            onnx_models.write(Path(folder), name, onnx_models.perceptron(), 'max_batch_size = 8\n[instances]\nkind = "gpu"')
        command = [sys.executable, "-m", "bench.gpu.sticky", folder]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if output.returncode:
            raise AssertionError(output.stderr[-1500:])
        found = json.loads(output.stdout.splitlines()[-1])
        began = time.perf_counter()
        node.run(lambda: _served_once(Path(folder)))
        again_s = time.perf_counter() - began
    if not found["worked_before"] or found["ready_after"] or any("UNAVAILABLE" not in text for text in found["states"].values()):
        raise AssertionError(json.dumps(found))
    return (
        f"The request that met it was answered after {found['first_ms']:.1f} ms: `{found['told']}`. When it had its answer the server was "
        f"not ready any more and both models were UNAVAILABLE, also the one that nobody had asked; of the next {found['asked_after']} "
        f"requests {found['failed_after']} were refused, the slowest after {found['slowest_after_ms']:.2f} ms. Another process loaded and "
        f"answered on the same GPU within {again_s:.1f} s."
    )


async def _served_once(folder: Path) -> None:
    async with node.served(folder) as (plane, _):
        await plane.infer(node.request("one", X=np.ones((1, 8, 256), np.float32)))
