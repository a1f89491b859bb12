"""What a model's own process costs: ``python -m bench.python_backend [--rounds 300]``.

One request after the other through the scheduler, in one process, without a door: an identity model in the server, and the same as
``model.py``. The difference is two trips through a socket and one to another process.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.stacks import IDENTITY
from core_grpc.models.model import Model
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.settings import ModelsSettings

SIZES = {"64 B": 16, "600 KB": 150_528}
CODE = """\
class Model:
    def execute(self, requests):
        return [{"Y": request.inputs["X"]} for request in requests]
"""
CONFIG = """\
backend = "python"
max_batch_size = 32
[input.X]
datatype = "FP32"
shape = [-1, -1]
[output.Y]
datatype = "FP32"
shape = [-1, -1]
"""


async def median_us(model: Model, columns: int, rounds: int) -> float:
    """Median time of a request, in microseconds."""
    inputs = {"X": np.zeros((1, columns), np.float32)}
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        execution = await model.infer(inputs, 1)
        times.append(time.perf_counter() - began)
        assert execution.outputs["Y"].shape == (1, columns)
    return float(np.median(times)) * 1e6


async def measure(rounds: int) -> Table:
    """Both models, in turn."""
    table = Table("request", "identity, µs", "Python, µs", "of identity")
    with tempfile.TemporaryDirectory() as folder:
        for name, config in (("identity", IDENTITY), ("python", CONFIG)):
            (Path(folder) / name / "1").mkdir(parents=True)
            (Path(folder) / name / "model.toml").write_text(config, encoding="utf-8")
        (Path(folder) / "python" / "1" / "model.py").write_text(CODE, encoding="utf-8")
        registry = Registry()
        control = RepositoryControl(Path(folder), ModelsSettings(), registry, 5.0)
        await control.load_all()
        for size, columns in SIZES.items():
            identity, python = [await median_us(registry.find(name), columns, rounds) for name in ("identity", "python")]
            table.add_row(size, f"{identity:,.0f}", f"{python:,.0f}", f"{python / identity:.1f}")
        await control.close()
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="requests of each kind (default 300)")
    Console(width=100).print(asyncio.run(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
