"""``grpc.health.v1.Health``, read from the data plane: it says SERVING exactly when ServerReady says ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from grpc_health.v1 import health_pb2 as pb

from core_grpc.data_plane import DataPlane
from core_grpc.errors import NotFound, quoted
from core_grpc.lifecycle import Lifecycle, ServerState
from core_grpc.rpc.context import RpcContext

_RECHECK_S = 0.5
"""How often Watch looks again by itself: a model's state can change readiness without a step of the server's."""


class HealthServicer:
    """Check and Watch. Known services are the empty name (the whole server) and every service that is offered."""

    def __init__(self, data_plane: DataPlane, lifecycle: Lifecycle[ServerState], services: Collection[str]) -> None:
        self._data_plane = data_plane
        self._lifecycle = lifecycle
        self._services = frozenset(services)

    async def Check(self, request: pb.HealthCheckRequest, _context: RpcContext) -> pb.HealthCheckResponse:
        """The status now; NOT_FOUND for an unknown service."""
        status = self._status(request.service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            raise NotFound(f"unknown service {quoted(request.service)}")
        return pb.HealthCheckResponse(status=status)

    async def Watch(self, request: pb.HealthCheckRequest, _context: RpcContext) -> AsyncIterator[pb.HealthCheckResponse]:
        """The status now and after each change, until the server has stopped."""
        changed = asyncio.Event()
        unwatch = self._lifecycle.watch(lambda _state: changed.set())
        try:
            told = None
            while self._lifecycle.state is not ServerState.STOPPED:
                changed.clear()
                status = self._status(request.service)
                if status != told:
                    yield pb.HealthCheckResponse(status=status)
                    told = status
                await _wait(changed, _RECHECK_S)
        finally:
            unwatch()

    def _status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        if service and service not in self._services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        return pb.HealthCheckResponse.SERVING if self._data_plane.ready() else pb.HealthCheckResponse.NOT_SERVING


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
