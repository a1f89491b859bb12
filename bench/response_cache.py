"""What the response cache saves and costs: ``python -m bench.response_cache [--rounds 200]``.

The data plane in one process, without a door: the same model without a cache, with one that has never seen the request (a miss), and
with one that has (a hit). The three take turns in every round, so the ratios are of one run. Latency is one request after the other;
throughput is 32 callers at once, each with the content of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.stacks import IDENTITY
from core_grpc.models.model import Model
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.server import DEMO_REPOSITORY
from core_grpc.settings import ModelsSettings
from core_grpc.types import Array

ENABLED = "\n[response_cache]\nenable = true\n"
CLASSIFIER = "efficientnet_lite0"
CALLERS = 32
SHAPES: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "identity 64 B": ("identity", (1, 16)),
    "demo classifier": (CLASSIFIER, (1, 3, 224, 224)),
}
WAYS = ("no cache", "miss", "hit")
FEWER = 10
"""The classifier takes milliseconds, so that fewer rounds will do."""

Inputs = Mapping[str, Array]


def write_repository(folder: Path) -> None:
    """Each model twice: without a cache, and as ``cached_<name>``."""
    (folder / "identity" / "1").mkdir(parents=True)
    (folder / "identity" / "model.toml").write_text(IDENTITY, encoding="utf-8")
    shutil.copytree(DEMO_REPOSITORY / CLASSIFIER, folder / CLASSIFIER)
    for name in ("identity", CLASSIFIER):
        shutil.copytree(folder / name, folder / f"cached_{name}")
        config = folder / f"cached_{name}" / "model.toml"
        config.write_text(config.read_text(encoding="utf-8") + ENABLED, encoding="utf-8")


def numbered_inputs(model: Model, shape: tuple[int, ...]) -> Callable[[int], Inputs]:
    """Inputs of a content that goes with a number."""
    (spec,) = model.spec.inputs
    template = np.random.default_rng(0).random(shape, np.float32)

    def inputs(number: int) -> Inputs:
        array = template.copy()
        array.reshape(-1)[0] = number
        return {spec.name: array}

    return inputs


async def measured(plain: Model, cached: Model, shape: tuple[int, ...], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median latency in microseconds and median requests per second, by way."""
    inputs, fresh = numbered_inputs(plain, shape), count(1)
    known = [inputs(-number) for number in range(1, CALLERS + 1)]
    for item in known:
        await cached.infer(item, 1)
    latencies: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            model = plain if way == "no cache" else cached
            given = known if way == "hit" else [inputs(next(fresh)) for _ in known]
            began = time.perf_counter()
            execution = await model.infer(given[0], 1)
            latencies[way].append(time.perf_counter() - began)
            assert (execution.batch_rows == 0) is (way == "hit")
            # What was just asked is known now: the others are not.
            began = time.perf_counter()
            await asyncio.gather(*(model.infer(item, 1) for item in given[1:]))
            rates[way].append((CALLERS - 1) / (time.perf_counter() - began))
            for item in known:
                # Misses must not drive out what is to be hit.
                assert (await cached.infer(item, 1)).batch_rows == 0
    return {way: float(np.median(times)) * 1e6 for way, times in latencies.items()}, {
        way: float(np.median(values)) for way, values in rates.items()
    }


async def measure(rounds: int) -> Table:
    """Both models, each way."""
    table = Table("model", "way", "latency, µs", "of no cache", f"req/s, {CALLERS} callers", "of no cache")
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        registry = Registry()
        control = RepositoryControl(Path(folder), ModelsSettings(), registry, 5.0)
        await control.load_all()
        for title, (name, shape) in SHAPES.items():
            times = rounds if name == "identity" else max(rounds // FEWER, 1)
            latencies, rates = await measured(registry.find(name), registry.find(f"cached_{name}"), shape, times)
            for way in WAYS:
                label = way if way == "no cache" else f"{way} / no cache"
                latency, rate = latencies[way] / latencies["no cache"], rates[way] / rates["no cache"]
                table.add_row(title, label, f"{latencies[way]:,.0f}", f"{latency:.2f}", f"{rates[way]:,.0f}", f"{rate:.2f}")
        await control.close()
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="requests each way (default 200; a tenth for the classifier)")
    Console(width=100).print(asyncio.run(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
