"""Hundreds of models on one node: ``python -m bench.many_models [MODEL.onnx] [--models 300] [--requests 4000]``.

Copies of one small model (a perceptron that is made on the spot, or the file that is named) are loaded as a node loads them. Printed are
the time until all are ready, threads and memory of each, the latency of one model where it is alone and where the others are loaded, the
latency with all of them asked in turn, and how long a request waits for a model that is not loaded. One request after the other, through
the data plane, without a door.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

from core_grpc.data_plane import DataPlane
from core_grpc.lifecycle import SERVER_STEPS, Lifecycle, ServerState
from core_grpc.models.freed_memory import trim
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.models.warmup import zero_inputs
from core_grpc.observability.tracing import Tracer
from core_grpc.settings import ModelsSettings, NodeSettings
from core_grpc.types import InferRequest, Tensor

EXPECTED_RATIO = 1.1
MODELS = 300
REQUESTS = 4000
TURNS = 100
WARM_UP = 200


class Plane:
    """A repository with what answers its requests."""

    def __init__(self, repository: Path, settings: ModelsSettings) -> None:
        self.registry = Registry()
        self.control = RepositoryControl(repository, settings, self.registry, 5.0)
        self._pool = ThreadPoolExecutor(1)
        lifecycle = Lifecycle(SERVER_STEPS, ServerState.STARTING)
        lifecycle.to(ServerState.SERVING)
        node = NodeSettings(models=settings)
        self._data_plane = DataPlane(self.registry, self.control, lifecycle, node, self._pool, Tracer("", self._pool))

    async def request(self, name: str) -> InferRequest:
        """Zeros for one row."""
        spec = await self._data_plane.spec(name)
        datatypes = {item.name: item.datatype for item in spec.inputs}
        inputs = {key: Tensor(datatypes[key], array) for key, array in zero_inputs(spec, 1).items()}
        return InferRequest(name, "", inputs)

    async def times_us(self, requests: Sequence[InferRequest]) -> list[float]:
        """Microseconds of each, one after the other."""
        times: list[float] = []
        for request in requests:
            began = time.perf_counter()
            await self._data_plane.infer(request)
            times.append((time.perf_counter() - began) * 1e6)
        return times


@asynccontextmanager
async def loaded(repository: Path, settings: ModelsSettings) -> AsyncIterator[Plane]:
    """The models of a repository, until the end of the block."""
    plane = Plane(repository, settings)
    await plane.control.load_all()
    try:
        yield plane
    finally:
        await plane.control.close()


def write_perceptron(path: Path) -> None:
    """30 inputs, 64 hidden units, 2 outputs: 9 KB."""
    dice = np.random.default_rng(0)
    weights = {"W1": (30, 64), "B1": (64,), "W2": (64, 2), "B2": (2,)}
    constants = [helper.make_tensor(key, TensorProto.FLOAT, size, dice.normal(size=size).ravel()) for key, size in weights.items()]
    nodes = [
        helper.make_node("Gemm", ["X", "W1", "B1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "W2", "B2"], ["Y"]),
    ]
    values = [helper.make_tensor_value_info(key, TensorProto.FLOAT, ["batch", size]) for key, size in (("X", 30), ("Y", 2))]
    graph = helper.make_graph(nodes, "perceptron", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def write_copies(repository: Path, model: Path | None, count: int) -> list[str]:
    """A repository with copies of one model; their names."""
    names = [f"model{number:04}" for number in range(count)]
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        file = repository / name / "1" / "model.onnx"
        if model:
            file.write_bytes(model.read_bytes())
        else:
            write_perceptron(file)
    return names


def resident_bytes() -> int:
    """The process's memory, with what was freed given back."""
    trim()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def thread_count() -> int:
    """The process's threads, Python's and others."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


async def measure(model: Path | None, count: int, requests: int) -> Table:
    """All figures, each beside what it is expected to be."""
    table = Table("", "measured", "expected")
    with tempfile.TemporaryDirectory() as one_folder, tempfile.TemporaryDirectory() as many_folder:
        (only,) = write_copies(Path(one_folder), model, 1)
        names = write_copies(Path(many_folder), model, count)
        async with loaded(Path(one_folder), ModelsSettings()) as one:
            await one.times_us([await one.request(only)] * WARM_UP)
            threads, memory, began = thread_count(), resident_bytes(), time.perf_counter()
            async with loaded(Path(many_folder), ModelsSettings()) as many:
                load_s = time.perf_counter() - began
                table.add_row(f"{count} models ready after", f"{load_s:.2f} s, {load_s / count * 1e3:.1f} ms each", "")
                table.add_row("memory of each", f"{(resident_bytes() - memory) / count / 1e3:.0f} KB", "")
                table.add_row("threads of each", f"{(thread_count() - threads) / count:.1f}", "")
                in_turn = await many.times_us([await many.request(name) for name in names])
            table.add_row("memory that stays when they are unloaded", f"{(resident_bytes() - memory) / 1e6:.0f} MB", "")
        alone, among = one_and_many(Path(one_folder), Path(many_folder), only, requests)
        table.add_row("p50 of one, alone", f"{alone:.0f} µs", "")
        table.add_row(f"p50 of one, {count} loaded", f"{among:.0f} µs, {among / alone:.2f} of alone", f"≤ {EXPECTED_RATIO}")
        table.add_row("p50 with all asked in turn", f"{statistics.median(in_turn):.0f} µs", "")
        first, again = await cold_starts(Path(many_folder), names)
        table.add_row("p50 of a first request, startup = on_demand", f"{first / 1e3:.1f} ms", "")
        table.add_row("p50 of a request for a model that had to go, another going for it", f"{again / 1e3:.1f} ms", "")
    return table


def one_and_many(one: Path, many: Path, name: str, requests: int) -> tuple[float, float]:
    """Medians of one model's latency in microseconds: where it is alone, and where many others are loaded.

    Each in a process of its own, asked in turns of a few requests, so that both see the same machine.
    """
    with _asking(one, name) as alone, _asking(many, name) as among:
        times: dict[Connection, list[float]] = {alone: [], among: []}
        for number in range(TURNS):
            for asked in (alone, among)[:: 1 if number % 2 else -1]:
                asked.send(max(requests // TURNS, 1))
                times[asked] += asked.recv()
        return statistics.median(times[alone]), statistics.median(times[among])


@contextmanager
def _asking(repository: Path, name: str) -> Iterator[Connection]:
    """A process with these models loaded: takes numbers of requests for the model of that name, and gives their times."""
    processes = get_context("spawn")
    here, there = processes.Pipe()
    process = processes.Process(target=_answer, args=(there, repository, name))
    process.start()
    try:
        here.send(WARM_UP)
        here.recv()
        yield here
    finally:
        here.send(0)
        process.join()


def _answer(connection: Connection, repository: Path, name: str) -> None:
    async def answer() -> None:
        async with loaded(repository, ModelsSettings()) as plane:
            request = await plane.request(name)
            while count := connection.recv():
                connection.send(await plane.times_us([request] * count))

    asyncio.run(answer())


async def cold_starts(repository: Path, names: Sequence[str]) -> tuple[float, float]:
    """Medians in microseconds: of the first request for each model, and of later ones under a budget of a tenth of the models."""
    settings = ModelsSettings(startup="on_demand", max_resident_models=max(len(names) // 10, 1))
    async with loaded(repository, settings) as plane:
        like = await _request_like(repository)
        requests = [like._replace(model_name=name) for name in names]
        first = await plane.times_us(requests[: settings.max_resident_models])
        await plane.times_us(requests[settings.max_resident_models :])
        again = await plane.times_us(requests)
    return statistics.median(first), statistics.median(again)


async def _request_like(repository: Path) -> InferRequest:
    """What a model of the repository is asked, without loading any in the plane that is measured."""
    async with loaded(repository, ModelsSettings(startup="on_demand")) as plane:
        return await plane.request(next(iter(plane.registry.all_slots())).entry.name)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="an ONNX file with fixed sizes beyond the batch (default: a small perceptron)")
    parser.add_argument("--models", type=int, default=MODELS, help=f"how many copies (default {MODELS})")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"requests for the latency of one model (default {REQUESTS})")
    arguments = parser.parse_args()
    Console(width=110).print(asyncio.run(measure(arguments.model, arguments.models, arguments.requests)))


if __name__ == "__main__":
    main()
