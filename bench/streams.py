"""Messages per second and latency of streams, next to unary calls: ``python -m bench.streams [--scale 1]``.

An identity model; the client is grpc.aio in this process, the same for streams and unary calls, and it is as much of the cost as the
server is: the ratios count. One stream keeps 16 requests in flight; 64 streams keep one each, as 64 unary callers do. Every answer is
checked against its request: a loss, a repetition or a wrong order ends the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
import httpx
import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from bench.stacks import IDENTITY, gateway, repository
from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from protos.tensorgate.v1 import inference_pb2 as tg
from protos.tensorgate.v1 import inference_pb2_grpc as tg_grpc

MODEL = "identity"
SIZES = {"64 B": 16, "150 KB": 38_400}
"""FP32 numbers in a message."""
IN_FLIGHT = 16
"""Requests in flight of one stream, or of as many unary callers."""

console = Console(width=120)


@dataclass(frozen=True)
class Measured:
    """What one way of asking did."""

    messages_per_s: float
    latencies_s: list[float]

    def milliseconds(self, percentile: float) -> float:
        """A percentile of the time from request to answer."""
        return float(np.percentile(self.latencies_s, percentile)) * 1000


class Protocol:
    """One protocol's words: how to make a request with a number in it, and find number and answer again."""

    def __init__(self, name: str, columns: int) -> None:
        self.name = name
        self._values = np.arange(columns, dtype=np.float32)[None].tobytes()
        self._columns = columns

    def infer(self, number: int) -> pb.ModelInferRequest:
        """Of the Open Inference Protocol."""
        request = pb.ModelInferRequest(model_name=MODEL, id=str(number), raw_input_contents=[self._values])
        request.inputs.add(name="X", datatype="FP32", shape=[1, self._columns])
        return request

    def predict(self, number: int) -> tg.PredictRequest:
        """Of tensorgate.v1."""
        return tg.PredictRequest(
            model=MODEL, id=str(number), inputs=[tg.Tensor(name="X", datatype="FP32", shape=[1, self._columns], raw=self._values)]
        )

    def check(self, number: int, got_id: str, raw: bytes) -> None:
        """Raises AssertionError where an answer is not that of the request ``number``."""
        assert got_id == str(number), f"wanted the answer to {number}, got that to {got_id}"
        assert raw == self._values


async def streamed(open_stream: Callable[[AsyncIterator[Any]], Any], make: Callable[[int], Any], read: Callable[[int, Any], None],
                   count: int, in_flight: int) -> Measured:  # fmt: skip
    """One stream of ``count`` messages, ``in_flight`` of them under way."""
    room = asyncio.Semaphore(in_flight)
    sent: deque[float] = deque()

    async def requests() -> AsyncIterator[Any]:
        for number in range(count):
            await room.acquire()
            sent.append(time.perf_counter())
            yield make(number)

    latencies: list[float] = []
    began = time.perf_counter()
    async for answer in open_stream(requests()):
        latencies.append(time.perf_counter() - sent.popleft())
        read(len(latencies) - 1, answer)
        room.release()
    assert len(latencies) == count, f"{len(latencies)} of {count} answers"
    return Measured(count / (time.perf_counter() - began), latencies)


async def called(call: Callable[[int], Awaitable[Any]], read: Callable[[int, Any], None], count: int) -> Measured:
    """One unary caller, ``count`` calls one after the other."""
    latencies: list[float] = []
    began = time.perf_counter()
    for number in range(count):
        at = time.perf_counter()
        read(number, await call(number))
        latencies.append(time.perf_counter() - at)
    return Measured(count / (time.perf_counter() - began), latencies)


async def together(runs: list[Awaitable[Measured]]) -> Measured:
    """Several at once, as one."""
    began = time.perf_counter()
    measured = await asyncio.gather(*runs)
    latencies = [latency for each in measured for latency in each.latencies_s]
    return Measured(len(latencies) / (time.perf_counter() - began), latencies)


async def compared(address: str, size: str, streams: int, count: int) -> dict[str, Measured]:
    """Unary calls, ModelStreamInfer and Converse with the same number of requests in flight."""
    words = Protocol(size, SIZES[size])
    callers = IN_FLIGHT if streams == 1 else streams
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        inference, tensorgate = pb_grpc.GRPCInferenceServiceStub(channel), tg_grpc.InferenceServiceStub(channel)

        def read_unary(number: int, answer: Any) -> None:
            words.check(number, answer.id, answer.raw_output_contents[0])

        def read_stream(number: int, answer: Any) -> None:
            read_unary(number, answer.infer_response)

        def read_converse(number: int, answer: Any) -> None:
            words.check(number, answer.outcome.id, answer.outcome.response.outputs[0].raw)

        def make_converse(number: int) -> tg.ConverseRequest:
            return tg.ConverseRequest(request=words.predict(number))

        each = count // callers
        depth = IN_FLIGHT if streams == 1 else 1
        per_stream = count // streams
        return {
            "unary": await together([called(lambda n: inference.ModelInfer(words.infer(n)), read_unary, each) for _ in range(callers)]),
            "ModelStreamInfer": await together(
                [streamed(inference.ModelStreamInfer, words.infer, read_stream, per_stream, depth) for _ in range(streams)]
            ),
            "Converse": await together(
                [streamed(tensorgate.Converse, make_converse, read_converse, per_stream, depth) for _ in range(streams)]
            ),
        }


def first_message_ms(edge: str, rounds: int) -> dict[str, float]:
    """Median delay of the first message of Watch, by gRPC-Web and server-sent events, and of a unary call over REST."""
    values = [float(number) for number in range(16)]
    body = {"model": MODEL, "inputs": [{"name": "X", "shape": [1, 16], "float_values": values}]}
    message = tg.WatchRequest(
        request=tg.PredictRequest(model=MODEL, inputs=[tg.Tensor(name="X", shape=[1, 16], float_values=values)])
    ).SerializeToString()
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    web = {"content": framed, "headers": {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}}
    events = {"content": json.dumps({"request": body}), "headers": {"accept": "text/event-stream", "content-type": "application/json"}}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "Watch by gRPC-Web": ("/tensorgate.v1.InferenceService/Watch", web),
        "Watch by server-sent events": ("/v1/watch", events),
        "Predict by REST (unary)": ("/v1/predict", {"content": json.dumps(body), "headers": {"content-type": "application/json"}}),
    }
    with httpx.Client(base_url=f"http://{edge}") as client:
        return {
            name: statistics.median(_first_ms(client, path, arguments) for _ in range(rounds)) for name, (path, arguments) in asked.items()
        }


def _first_ms(client: httpx.Client, path: str, arguments: dict[str, Any]) -> float:
    began = time.perf_counter()
    with client.stream("POST", path, **arguments) as response:
        pieces = response.iter_raw()
        assert next(pieces)
        first = time.perf_counter() - began
        assert response.status_code == 200
        for _ in pieces:
            continue
    return first * 1000


def report(door: str, rows: dict[tuple[str, int], dict[str, Measured]]) -> None:
    """The table of one door."""
    table = Table("message", "streams", "", "messages/s", "p50 ms", "p99 ms", "of unary", title=door)
    for (size, streams), ways in rows.items():
        for name, measured in ways.items():
            ratio = measured.messages_per_s / ways["unary"].messages_per_s
            latency = [f"{measured.milliseconds(percentile):.2f}" for percentile in (50, 99)]
            table.add_row(size, str(streams), name, f"{measured.messages_per_s:,.0f}", *latency, f"{ratio:.2f}")
    console.print(table)


async def measure(address: str, scale: float) -> dict[tuple[str, int], dict[str, Measured]]:
    """Every size with one stream and with 64."""
    rows = {}
    for size, count in (("64 B", 8000), ("150 KB", 1500)):
        for streams in (1, 64):
            many = max(int(count * scale) // 64, 2) * 64
            await compared(address, size, streams, 128)
            rows[size, streams] = await compared(address, size, streams, many)
    return rows


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages (default 1)")
    arguments = parser.parse_args()
    with repository({MODEL: IDENTITY}) as models, gateway(models) as running:
        for door, address in (("on the node", running.node), ("through the edge", running.edge)):
            report(f"Streams {door}", uvloop.run(measure(address, arguments.scale)))
        delays = first_message_ms(running.edge, max(int(200 * arguments.scale), 3))
    table = Table("first message, through the edge", "median ms")
    for name, milliseconds in delays.items():
        table.add_row(name, f"{milliseconds:.2f}")
    console.print(table)
    console.print("No answer was lost, repeated or out of order.")


if __name__ == "__main__":
    main()
