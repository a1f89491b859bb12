"""A model that is reloaded without end while it is asked: ``python -m bench.reloads [MODEL.onnx] [--reloads 1000] [--callers 4]``.

A node is started as an operator starts it. Callers ask the model over gRPC without pause; meanwhile it is loaded anew, one time after the
other. Printed are the failed requests, of which there must be none, and how the node's memory (PSS) grew from one reload to the next, as
the slope of a straight line through what was measured after the first fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.many_models import write_copies
from bench.stacks import Gateway, gateway, pss_bytes
from protos.inference import grpc_service_pb2 as pb
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub

RELOADS = 1000
CALLERS = 4
EXPECTED_MB = 1.0
"""Growth in 100 reloads."""
SAMPLES = 50


class Asked:
    """What the callers saw."""

    def __init__(self) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self.is_over = False


async def reloads(node: Gateway, name: str, count: int, callers: int) -> tuple[Asked, list[float]]:
    """The callers' record, and the node's memory in MB after each fiftieth of the reloads."""
    asked, memory_mb = Asked(), []
    async with grpc.aio.insecure_channel(node.node) as channel:
        stub = GRPCInferenceServiceStub(channel)
        request = await _request(stub, name)
        asking = [asyncio.create_task(_ask(stub, request, asked)) for _ in range(callers)]
        for number in range(1, count + 1):
            await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=name), timeout=60)
            if number % max(count // SAMPLES, 1) == 0:
                memory_mb.append(pss_bytes(node.pid_of("node")) / 1e6)
        asked.is_over = True
        await asyncio.gather(*asking)
    return asked, memory_mb


async def _ask(stub: GRPCInferenceServiceStub, request: pb.ModelInferRequest, asked: Asked) -> None:
    while not asked.is_over:
        try:
            await stub.ModelInfer(request, timeout=60)
            asked.answers += 1
        except grpc.aio.AioRpcError as error:
            asked.failures.append(f"{error.code().name}: {error.details()}")


async def _request(stub: GRPCInferenceServiceStub, name: str) -> pb.ModelInferRequest:
    """Zeros for one row."""
    metadata = await stub.ModelMetadata(pb.ModelMetadataRequest(name=name), timeout=60)
    request = pb.ModelInferRequest(model_name=name)
    for item in metadata.inputs:
        if item.datatype != "FP32":
            sys.exit(f"input {item.name} is {item.datatype}: this asks models that take FP32")
        shape = [1 if size == -1 else size for size in item.shape]
        request.inputs.add(name=item.name, datatype="FP32", shape=shape)
        request.raw_input_contents.append(np.zeros(shape, np.float32).tobytes())
    return request


def slope_mb(memory_mb: Sequence[float], count: int) -> float:
    """MB that 100 reloads added, by a straight line through all but the first fifth."""
    settled = memory_mb[len(memory_mb) // 5 :]
    of_one_sample = float(np.polyfit(range(len(settled)), settled, 1)[0])
    return of_one_sample / max(count // SAMPLES, 1) * 100


async def measure(model: Path | None, count: int, callers: int) -> Table:
    """What came of it, beside what it is expected to be."""
    with tempfile.TemporaryDirectory() as folder:
        (name,) = write_copies(Path(folder), model, 1)
        with gateway(Path(folder)) as node:
            asked, memory_mb = await reloads(node, name, count, callers)
    table = Table(f"{count} reloads, {callers} callers", "measured", "expected")
    table.add_row("answers", str(asked.answers), "")
    table.add_row("failed requests", " ".join([str(len(asked.failures)), *sorted(set(asked.failures))]), "0")
    table.add_row("node's memory, first and last", f"{memory_mb[0]:.1f} MB, {memory_mb[-1]:.1f} MB", "")
    table.add_row("growth in 100 reloads", f"{slope_mb(memory_mb, count):.2f} MB", f"< {EXPECTED_MB:.0f} MB")
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="an ONNX file with FP32 inputs (default: a small perceptron)")
    parser.add_argument("--reloads", type=int, default=RELOADS, help=f"how often it is loaded anew (default {RELOADS})")
    parser.add_argument("--callers", type=int, default=CALLERS, help=f"callers that ask without pause (default {CALLERS})")
    arguments = parser.parse_args()
    Console(width=100).print(asyncio.run(measure(arguments.model, arguments.reloads, arguments.callers)))


if __name__ == "__main__":
    main()
