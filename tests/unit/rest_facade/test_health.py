"""The probes."""

from __future__ import annotations

import asyncio
import time

import httpx
from grpc_health.v1 import health_pb2

from tests.unit.rest_facade.conftest import Connect, Core


async def test_ready_when_the_core_serves(facade: httpx.AsyncClient) -> None:
    response = await facade.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "core": "SERVING"})
    assert response.headers["cache-control"] == "no-store"


async def test_not_ready_when_the_core_does_not_serve(facade: httpx.AsyncClient, core: Core) -> None:
    core.status = health_pb2.HealthCheckResponse.NOT_SERVING
    response = await facade.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "not ready", "core": "NOT_SERVING"})


async def test_not_ready_when_the_core_is_away(connect: Connect) -> None:
    facade = await connect(core_address="127.0.0.1:1")
    response = await facade.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "not ready", "core": "UNREACHABLE"})


async def test_a_core_that_hangs_does_not_hang_the_probe(connect: Connect, core: Core) -> None:
    core.hold = asyncio.Event()
    facade = await connect(probe_timeout_s=0.2)
    began = time.monotonic()
    response = await facade.get("/health")
    assert (response.status_code, response.json()["core"]) == (503, "UNREACHABLE")
    assert time.monotonic() - began < 5


async def test_live_without_the_core(connect: Connect) -> None:
    facade = await connect(core_address="127.0.0.1:1")
    response = await facade.get("/health/live")
    assert (response.status_code, response.json()) == (200, {"status": "live"})


async def test_probes_answer_head(facade: httpx.AsyncClient) -> None:
    assert (await facade.head("/health")).status_code == 200
    assert (await facade.head("/health/live")).content == b""
