"""Callers that keep calling whatever happens, and what became of each call: the load under which faults are measured.

Three kinds, each in a closed loop: unary gRPC, JSON over HTTP/1.1, and streams of inferences that send the next request when the last one
is answered. A failure is counted and its caller goes on; a stream that ends is opened again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import httpx
import numpy as np

from protos.inference import grpc_service_pb2 as oip
from protos.inference import grpc_service_pb2_grpc as oip_grpc

CALL_S = 20.0
"""How long a caller waits for one answer."""
_VALUES = np.arange(4, dtype=np.float32)[None]
_PAUSE_S = 0.02
"""After a failure: a server that refuses at once would otherwise be asked thousands of times a second."""


@dataclass
class Tally:
    """What became of the calls of one kind."""

    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By status."""
    longest_s: float = 0.0
    """Of the answered calls."""
    last_failure: float = 0.0
    """When the last failure was seen, monotonic; 0 if there was none."""

    @property
    def failed(self) -> int:
        """Failed calls; of streams, those that broke."""
        return self.failures.total()


@dataclass(frozen=True)
class Callers:
    """How many callers of each kind, and the model they call: one input X, FP32, and one output Y that repeats it."""

    model: str
    unary: int = 8
    rest: int = 8
    streams: int = 2


@dataclass
class Load:
    """A running load."""

    unary: Tally = field(default_factory=Tally)
    rest: Tally = field(default_factory=Tally)
    streams: Tally = field(default_factory=Tally)

    @property
    def tallies(self) -> dict[str, Tally]:
        """By kind of call."""
        return {"gRPC": self.unary, "REST": self.rest, "stream": self.streams}

    async def more_answers(self, count: int, timeout_s: float = 30.0) -> None:
        """Returns when each kind that has callers was answered ``count`` times more.

        Raises:
            TimeoutError: it was not.
        """
        wanted = {name: tally.answered + count for name, tally in self.tallies.items() if tally.answered or tally.failed}
        async with asyncio.timeout(timeout_s):
            while any(self.tallies[name].answered < least for name, least in wanted.items()):  # noqa: ASYNC110  # Nobody tells.
                await asyncio.sleep(0.02)


@asynccontextmanager
async def steady_load(edge: str, callers: Callers) -> AsyncIterator[Load]:
    """Calls the edge at ``host:port`` from several connections, until the end of the block; every caller was answered before it begins."""
    load = Load()
    stopping = asyncio.Event()
    async with httpx.AsyncClient(timeout=CALL_S, limits=httpx.Limits(max_connections=None)) as client, asyncio.TaskGroup() as group:
        channels = [grpc.aio.insecure_channel(edge, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(2)]
        stubs = [oip_grpc.GRPCInferenceServiceStub(channel) for channel in channels]
        for number in range(callers.unary):
            group.create_task(_calls(_unary(stubs[number % 2], callers.model), load.unary, stopping))
        for _ in range(callers.rest):
            group.create_task(_calls(_rest(client, f"http://{edge}/v2/models/{callers.model}/infer"), load.rest, stopping))
        for number in range(callers.streams):
            group.create_task(_stream(stubs[number % 2], callers.model, load.streams, stopping))
        try:
            async with asyncio.timeout(CALL_S):
                while any(tally.answered < 2 for tally, count in _kinds(load, callers) if count):  # noqa: ASYNC110  # Nobody tells.
                    await asyncio.sleep(0.02)
            yield load
        finally:
            stopping.set()
    for channel in channels:
        await channel.close()


def _kinds(load: Load, callers: Callers) -> list[tuple[Tally, int]]:
    return [(load.unary, callers.unary), (load.rest, callers.rest), (load.streams, callers.streams)]


def _request(model: str) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=model)
    request.inputs.add(name="X", datatype="FP32", shape=_VALUES.shape)
    request.raw_input_contents.append(_VALUES.tobytes())
    return request


def _unary(stub: oip_grpc.GRPCInferenceServiceStub, model: str) -> Callable[[], Awaitable[str]]:
    request = _request(model)

    async def call() -> str:
        try:
            answer = await stub.ModelInfer(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "" if answer.raw_output_contents[0] == request.raw_input_contents[0] else "another answer"

    return call


def _rest(client: httpx.AsyncClient, url: str) -> Callable[[], Awaitable[str]]:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": list(_VALUES.shape), "data": _VALUES.tolist()}]}

    async def call() -> str:
        try:
            answer = await client.post(url, json=body)
        except httpx.HTTPError as error:
            return type(error).__name__
        if answer.status_code != 200:
            return f"{answer.status_code}: {answer.text[:200]}"
        return "" if answer.json()["outputs"][0]["data"] == _VALUES.reshape(-1).tolist() else "another answer"

    return call


async def _calls(call: Callable[[], Awaitable[str]], tally: Tally, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        began = time.monotonic()
        await _count(tally, await call(), began)


async def _count(tally: Tally, failure: str, began: float) -> None:
    if failure:
        tally.failures[failure] += 1
        tally.last_failure = time.monotonic()
        await asyncio.sleep(_PAUSE_S)
    else:
        tally.answered += 1
        tally.longest_s = max(tally.longest_s, time.monotonic() - began)


async def _stream(stub: oip_grpc.GRPCInferenceServiceStub, model: str, tally: Tally, stopping: asyncio.Event) -> None:
    request = _request(model)
    while not stopping.is_set():
        stream = stub.ModelStreamInfer()
        try:
            while not stopping.is_set():
                began = time.monotonic()
                await stream.write(request)
                answer = await asyncio.wait_for(stream.read(), CALL_S)
                if answer is grpc.aio.EOF:
                    code = await stream.code()
                    await _count(tally, f"{code.name}: {await stream.details()}", began)
                    break
                await _count(tally, answer.error_message, began)
        except grpc.aio.AioRpcError as error:
            await _count(tally, f"{error.code().name}: {error.details()}", began)
        except asyncio.InvalidStateError:
            # It has ended between two requests.
            await _count(tally, f"{(await stream.code()).name}: {await stream.details()}", began)
        except TimeoutError:
            await _count(tally, "no answer", began)
        finally:
            stream.cancel()
