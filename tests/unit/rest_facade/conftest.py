"""A facade in front of a gRPC server that a test scripts, over a real channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.tensorgate.v1 import inference_pb2 as pb
from protos.tensorgate.v1 import inference_pb2_grpc
from rest_facade.app import create_app
from rest_facade.settings import FacadeSettings

READY = pb.MODEL_STATE_READY


def model(name: str, datatype: str = "FP32", shape: tuple[int, ...] = (-1, 4), **more: Any) -> pb.Model:
    """A ready model with one input `x`."""
    fields: dict[str, Any] = {"version": "1", "state": READY, "max_batch_size": 8, **more}
    return pb.Model(name=name, inputs=[pb.TensorSpec(name="x", datatype=datatype, shape=shape)], **fields)


class Core(inference_pb2_grpc.InferenceServiceServicer, health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """A real server of the core's contract whose models answer their input back, and which fails when told to."""

    def __init__(self) -> None:
        self.models = {item.name: item for item in (model("echo"), model("ints", "INT64", (-1, 2)), model("bools", "BOOL"))}
        self.status = health_pb2.HealthCheckResponse.SERVING
        self.failure: tuple[grpc.StatusCode, str] | Exception | None = None
        self.output: pb.Tensor | None = None
        self.classes: list[pb.RowClasses] = []
        self.requests: list[pb.PredictRequest] = []
        self.metadata: dict[str, str] = {}
        self.port = 0
        self.hold: asyncio.Event | None = None
        self.was_cancelled = asyncio.Event()
        self.entered = asyncio.Event()

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        self.metadata = dict(context.invocation_metadata())
        name = request.model or "echo"
        if name not in self.models:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        return pb.GetModelResponse(model=self.models[name])

    async def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        self.requests.append(request)
        self.entered.set()
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure:
            await context.abort(*self.failure)
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
        output = pb.Tensor()
        output.CopyFrom(self.output or request.inputs[0])
        output.name = "y"
        return pb.PredictResponse(model=request.model, version="1", outputs=[output], classes=self.classes)

    async def Check(self, _request: Any, _context: Any) -> health_pb2.HealthCheckResponse:
        if self.hold is not None:
            await self.hold.wait()
        return health_pb2.HealthCheckResponse(status=self.status)


@pytest.fixture
async def core() -> AsyncIterator[Core]:
    servicer = Core()
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer
    await server.stop(None)


Connect = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def connect(core: Core, tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes facades: settings in, a client of it out."""
    closers: list[Callable[[], Awaitable[Any]]] = []

    async def make(**settings: Any) -> httpx.AsyncClient:
        fields = {"core_address": f"127.0.0.1:{core.port}", "demo_directory": tmp_path / "none", **settings}
        # In a thread: making the application looks at the disk, which a running loop may not; a program does it before there is a loop.
        app = await asyncio.to_thread(lambda: create_app(FacadeSettings(**fields)))
        lifespan = app.router.lifespan_context(app)
        await lifespan.__aenter__()
        closers.append(lambda: lifespan.__aexit__(None, None, None))
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        closers.append(client.aclose)
        return client

    yield make
    for close in reversed(closers):
        await close()


@pytest.fixture
async def facade(connect: Connect) -> httpx.AsyncClient:
    return await connect()


def error_of(response: httpx.Response) -> tuple[int, int, str]:
    """Status, code and message of an error, after a look at its form."""
    body = response.json()
    assert list(body) == ["code", "message", "details"]
    assert body["details"] == []
    assert response.headers["content-type"] == "application/json"
    assert "\n" not in body["message"]
    return response.status_code, body["code"], body["message"]
