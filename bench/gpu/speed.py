"""The parts of the GPU report that say how fast: ResNet-50 FP16, uint8 images, the engine's own loop beside the pipeline and the node."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from bench.gpu import node, onnx_models
from bench.gpu.raw_loop import RawLoop, ort_pipeline, raw_loop
from bench.gpu.timed_driver import Span, TimedDriver, covered_ms, overlap_ms
from bench.stacks import free_port, python_program
from core_grpc.backends.cuda.device import cuda_device

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

MODEL = "resnet50"
CONFIG = 'max_batch_size = 32\n[instances]\nkind = "gpu"\ncount = {count}\n[queue]\nmax_rows = 8192\n'
SECONDS = 4.0
TARGET_SHARE = 0.8
TARGET_ADDED_MS = 0.3


class Speed(NamedTuple):
    """What callers in the node get."""

    callers: int
    rows: int
    """In one request."""
    rows_per_s: float
    p50_ms: float
    p99_ms: float


class Figures:
    """Everything that was measured, for the text and the plots."""

    def __init__(self) -> None:
        self.raw: dict[int, RawLoop] = {}
        self.node: list[Speed] = []
        self.over_grpc: list[tuple[str, float, float]] = []

    @property
    def raw_rows_per_s(self) -> float:
        """The fastest loop of the engine at batch 32."""
        return max(self.raw[32].engine, self.raw[32].graph)


def images(rows: int, seed: int = 0) -> NDArray[Any]:
    """Random images, ``[rows, 3, 224, 224]`` uint8."""
    return np.random.default_rng(seed).integers(0, 256, (rows, *onnx_models.IMAGE), np.uint8)


def engine_alone(figures: Figures, model_file: Path) -> str:
    """The engine's own loops, from the barest on."""
    pipeline = ort_pipeline(model_file)
    kept = pipeline.open_lane()
    for rows in (1, 8, 32):
        figures.raw[rows] = raw_loop(pipeline, {"image": images(rows)}, 2.0)
    kept.close()
    lines = [
        f"| {raw.rows} | {raw.engine:,.0f} | {raw.graph:,.0f} | {raw.graph_with_copies:,.0f} | {raw.lane:,.0f} | {raw.lanes:,.0f} "
        f"| {raw.batch_s * 1000:.2f} |"
        for raw in figures.raw.values()
    ]
    return (
        "| batch | enqueue | CUDA graph | graph and copies, one at a time | one lane | two lanes | a lane's batch, ms |\n"
        "|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n\nImages a second. The first two are the raw loop: inputs on the GPU already, no host work, no waiting."
    )


def inside_the_node(figures: Figures, folder: Path) -> str:
    """Callers of ``DataPlane.infer``."""
    node.run(lambda: _one_caller(figures, folder))
    node.run(lambda: _many_callers(figures, folder))
    raw = figures.raw_rows_per_s
    lines = [
        f"| {item.callers} | {item.rows} | {item.rows_per_s:,.0f} | {item.rows_per_s / raw:.0%} | {item.p50_ms:.2f} | {item.p99_ms:.2f} |"
        for item in figures.node
    ]
    best = max(figures.node, key=lambda item: item.rows_per_s)
    best_of_ones = max((item for item in figures.node if item.rows == 1), key=lambda item: item.rows_per_s)
    one = figures.node[0]
    added_ms = one.p50_ms - figures.raw[1].batch_s * 1000
    return (
        "| callers | images a request | images/s | of the raw loop | p50 ms | p99 ms |\n|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\n- Expected ≥ {TARGET_SHARE:.0%} of the raw loop ({raw:,.0f} images/s at batch 32): "
        f"{_met(best.rows_per_s / raw >= TARGET_SHARE)}, "
        f"{best.rows_per_s / raw:.0%}; with one image a request {best_of_ones.rows_per_s / raw:.0%}."
        f"\n- Expected ≤ {TARGET_ADDED_MS} ms added for one caller: {_met(added_ms <= TARGET_ADDED_MS)}, {added_ms:.3f} ms "
        f"({one.p50_ms:.3f} ms against {figures.raw[1].batch_s * 1000:.3f} ms of `Lane.execute` alone, medians)."
    )


async def _one_caller(figures: Figures, folder: Path) -> None:
    async with node.served(folder) as (plane, _):
        figures.node.append(await _pressed(plane, 1, 1))


async def _many_callers(figures: Figures, folder: Path) -> None:
    async with node.served(folder) as (plane, _):
        for callers, rows in ((64, 1), (128, 1), (256, 1), (32, 4), (64, 4), (16, 8), (24, 8), (3, 32), (4, 32)):
            figures.node.append(await _pressed(plane, callers, rows))


async def _pressed(plane: Any, callers: int, rows: int) -> Speed:
    given = [node.request(MODEL, image=images(rows, seed)) for seed in range(min(callers, 64))]

    async def ask(caller: int, _turn: int) -> tuple[int, bool]:
        response = await plane.infer(given[caller % len(given)])
        return rows, response.outputs["probabilities"].array.shape == (rows, onnx_models.CLASSES)

    await node.Load().press(callers, 1.5, ask)
    load = await node.Load().press(callers, SECONDS, ask)
    assert not load.wrong
    return Speed(callers, rows, load.rows_per_s, load.percentile_ms(0.5), load.percentile_ms(0.99))


def overlap(folder: Path, plots: Path) -> str:
    """Copies under executions, by CUDA's own stamps, while 256 callers press."""
    driver = cuda_device(0).driver
    if not isinstance(driver, TimedDriver):
        raise TypeError("the GPU was opened without stamps")
    spans, elapsed_s, speed = node.run(lambda: _stamped(folder, driver))
    by_kind = {kind: [span for span in spans if span.kind == kind] for kind in ("copy in", "execute", "copy out")}
    copies = [*by_kind["copy in"], *by_kind["copy out"]]
    copied, executed = covered_ms(copies), covered_ms(by_kind["execute"])
    under = overlap_ms(copies, by_kind["execute"])
    _plot_timeline(spans, plots / "overlap.png")
    return (
        f"{len(by_kind['execute'])} batches in {elapsed_s:.1f} s at {speed:,.0f} images/s, stamped. The GPU executed for "
        f"{executed / elapsed_s / 10:.0f} % of the time. Copies took {copied:.0f} ms, of which {under / copied:.0%} happened while a batch "
        "executed.\n\n![Copies and executions](overlap.png)"
    )


async def _stamped(folder: Path, driver: TimedDriver) -> tuple[list[Span], float, float]:
    async with node.served(folder) as (plane, _):
        await _pressed(plane, 256, 1)
        given = [node.request(MODEL, image=images(1, seed)) for seed in range(64)]

        async def ask(caller: int, _turn: int) -> tuple[int, bool]:
            await plane.infer(given[caller % 64])
            return 1, True

        driver.begin()
        load = await node.Load().press(256, 2.0, ask)
        return await asyncio.to_thread(_ended, driver), load.elapsed_s, load.rows_per_s


def _ended(driver: TimedDriver) -> list[Span]:
    driver.use()
    return driver.end()


def _plot_timeline(spans: Sequence[Span], path: Path) -> None:
    middle = spans[len(spans) // 2].began_ms
    shown = [span for span in spans if middle <= span.began_ms < middle + 25]
    streams = sorted({span.stream for span in spans})
    executing = {span.stream for span in spans if span.kind == "execute"}
    names = [("compute stream" if stream in executing else f"copy stream of lane {index}") for index, stream in enumerate(streams)]
    colours = {"copy in": "tab:orange", "execute": "tab:blue", "copy out": "tab:green"}
    figure, axes = plt.subplots(figsize=(10, 2.2))
    for span in shown:
        axes.barh(
            streams.index(span.stream), span.ended_ms - span.began_ms, left=span.began_ms - middle, height=0.6, color=colours[span.kind]
        )
    axes.set_yticks(range(len(streams)), names)
    axes.set_xlabel("ms")
    axes.legend(handles=[Patch(color=colour, label=kind) for kind, colour in colours.items()], loc="upper right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def over_grpc(figures: Figures, folder: Path) -> str:
    """The same load by callers in other processes, over loopback gRPC, on one and on several nodes that share the GPU."""
    lines = []
    for transport, nodes in (("grpcio", 1), ("grpcio", 2), ("grpcio", 4), ("envoy", 1), ("envoy", 4)):
        try:
            rate, p50_ms = _grpc_rate(folder, transport, nodes)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            lines.append(f"| {nodes} | {transport} | did not run: {str(error).splitlines()[0][:120]} | | |")
            continue
        figures.over_grpc.append((f"{nodes} {transport}", rate, p50_ms))
        lines.append(f"| {nodes} | {transport} | {rate:,.0f} | {rate / figures.raw_rows_per_s:.0%} | {p50_ms:.1f} |")
    return "| nodes on the GPU | transport | images/s | of the raw loop | p50 ms |\n|---|---|---|---|---|\n" + "\n".join(lines)


def _grpc_rate(folder: Path, transport: str, nodes: int) -> tuple[float, float]:
    with ExitStack() as running:
        targets = [running.enter_context(_node(folder, transport)) for _ in range(nodes)]
        command = [sys.executable, "-m", "bench.gpu.grpc_callers", MODEL, "1", "32", "5", *targets]
        callers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
        said = [json.loads(process.communicate(timeout=90)[0].splitlines()[-1]) for process in callers]
    return sum(item["rows"] / item["seconds"] for item in said), float(np.median([item["p50_ms"] for item in said]))


@contextmanager
def _node(folder: Path, transport: str) -> Iterator[str]:
    port = free_port()
    arguments = ["-m", "tensorgate", "node", "--port", str(port), "--metrics-port", "0", "--transport", transport]
    with (
        tempfile.TemporaryDirectory() as state,
        python_program(
            [*arguments, "--models", str(folder), "--log-level", "warning"], {"TENSORGATE_USAGE_DATABASE": f"{state}/usage.db"}, port
        ) as target,
    ):
        _await_ready(target)
        yield target


def _await_ready(target: str) -> None:
    ask = "import grpc, sys; from protos.inference import grpc_service_pb2 as pb, grpc_service_pb2_grpc as g; "
    ask += "s = g.GRPCInferenceServiceStub(grpc.insecure_channel(sys.argv[1])); sys.exit(not s.ServerReady(pb.ServerReadyRequest()).ready)"
    for _ in range(60):
        if not subprocess.run([sys.executable, "-c", ask, target], check=False, capture_output=True).returncode:
            return
        time.sleep(0.5)
    raise RuntimeError("the node did not become ready")


def plot_speed(figures: Figures, path: Path) -> None:
    """Images a second, from the raw loop to the wire."""
    raw = figures.raw[32]
    best = max(figures.node, key=lambda item: item.rows_per_s)
    ones = max((item for item in figures.node if item.rows == 1), key=lambda item: item.rows_per_s)
    bars = {
        "raw loop": figures.raw_rows_per_s,
        "graph and copies, one at a time": raw.graph_with_copies,
        "two lanes, no scheduler": raw.lanes,
        f"callers in the node, {best.rows} images a request": best.rows_per_s,
        "callers in the node, 1 image a request": ones.rows_per_s,
        **{f"over gRPC, {name}": rate for name, rate, _ in figures.over_grpc},
    }
    figure, axes = plt.subplots(figsize=(9, 0.4 * len(bars) + 1))
    axes.barh(list(bars), list(bars.values()))
    axes.axvline(figures.raw_rows_per_s * TARGET_SHARE, color="grey", linestyle="--")
    axes.invert_yaxis()
    axes.set_xlabel(f"images a second, batch 32 (dashed: {TARGET_SHARE:.0%} of the raw loop)")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _met(is_met: bool) -> str:
    return "met" if is_met else "not met"


def processors() -> int:
    """Logical processors of the machine."""
    return os.cpu_count() or 0
