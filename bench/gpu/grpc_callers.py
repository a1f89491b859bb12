"""Callers over gRPC, in a process of their own: ``python -m bench.gpu.grpc_callers MODEL ROWS CALLERS SECONDS HOST:PORT…``.

Prints one line of JSON: rows, seconds, and the median latency in ms.
"""

from __future__ import annotations

import asyncio
import json
import sys

import grpc
import numpy as np

from bench.gpu.node import Load
from protos.inference.grpc_service_pb2 import ModelInferRequest
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub


async def main(model: str, rows: int, callers: int, seconds: float, targets: list[str]) -> None:
    """Presses on all targets, each caller on one."""
    options = [("grpc.max_receive_message_length", 1 << 30), ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(targets[number % len(targets)], options=options) for number in range(min(callers, 8))]
    stubs = [GRPCInferenceServiceStub(channel) for channel in channels]
    message = ModelInferRequest(model_name=model)
    shape = [rows, 3, 224, 224]
    message.inputs.add(name="image", datatype="UINT8", shape=shape)
    message.raw_input_contents.append(np.random.default_rng(1).integers(0, 256, shape, np.uint8).tobytes())

    async def ask(caller: int, _turn: int) -> tuple[int, bool]:
        answer = await stubs[caller % len(stubs)].ModelInfer(message)
        return rows, len(answer.raw_output_contents[0]) == rows * 4000

    load = await Load().press(callers, seconds, ask)
    assert not load.wrong
    print(json.dumps({"rows": load.rows, "seconds": load.elapsed_s, "p50_ms": load.percentile_ms(0.5)}))
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
