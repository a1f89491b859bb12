"""Registering shared memory, over gRPC and REST. Whether it is allowed is the setting ``server.shared_memory``."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Mapping
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from core_grpc.errors import InvalidArgument
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.http_body import http_json
from core_grpc.rpc.rest_json import members, parse_document, refuse_unknown, text
from core_grpc.settings import LimitsSettings
from core_grpc.shared_memory.cuda import CudaMemory, check_handle, cuda_runtime, open_cuda_memory
from core_grpc.shared_memory.regions import RegionStatus, SharedMemory
from core_grpc.shared_memory.system import open_system_memory
from protos.inference import grpc_service_pb2 as pb
from protos.tensorgate.rest.v1 import rest_pb2


def register_system(memory: SharedMemory, status: RegionStatus) -> None:
    """Opens and registers a system region.

    Raises:
        Unsupported, InvalidArgument, AlreadyExists: it is not allowed, wrong, or there already.
    """
    memory.check_allowed()
    memory.check_free(status.name)
    memory.add(status, open_system_memory(status.key, status.offset, status.byte_size))


async def register_cuda(memory: SharedMemory, status: RegionStatus, raw_handle: bytes) -> None:
    """As ``register_system``, for a CUDA region. On a thread: the first use of a GPU takes seconds."""
    memory.check_allowed()
    memory.check_free(status.name)
    check_handle(raw_handle, status.byte_size)
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, lambda: open_cuda_memory(cuda_runtime(), raw_handle, status.device_id, status.byte_size))
    try:
        memory.add(status, await asyncio.shield(opening))
    except asyncio.CancelledError:
        opening.add_done_callback(_let_go)
        raise


def _let_go(opening: asyncio.Future[CudaMemory]) -> None:
    """Its caller has left."""
    if not opening.cancelled() and not opening.exception():
        opening.result().close()


class SharedMemoryServicer:
    """Of ``inference.GRPCInferenceService``."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest, _context: RpcContext
    ) -> pb.SystemSharedMemoryStatusResponse:
        """The registered regions, or one."""
        self._memory.check_allowed()
        answer = pb.SystemSharedMemoryStatusResponse()
        for region in self._memory.statuses("system", request.name):
            status = answer.regions[region.name]
            status.name, status.key, status.offset, status.byte_size = region.name, region.key, region.offset, region.byte_size
        return answer

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest, _context: RpcContext
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Registers a region."""
        register_system(self._memory, RegionStatus(request.name, "system", request.byte_size, request.key, request.offset))
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, _context: RpcContext
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Unregisters a region, or all."""
        self._memory.check_allowed()
        self._memory.remove("system", request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: pb.CudaSharedMemoryStatusRequest, _context: RpcContext
    ) -> pb.CudaSharedMemoryStatusResponse:
        """The registered regions, or one."""
        self._memory.check_allowed()
        answer = pb.CudaSharedMemoryStatusResponse()
        for region in self._memory.statuses("cuda", request.name):
            status = answer.regions[region.name]
            status.name, status.device_id, status.byte_size = region.name, region.device_id, region.byte_size
        return answer

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest, _context: RpcContext
    ) -> pb.CudaSharedMemoryRegisterResponse:
        """Registers a region."""
        status = RegionStatus(request.name, "cuda", request.byte_size, device_id=request.device_id)
        await register_cuda(self._memory, status, request.raw_handle)
        return pb.CudaSharedMemoryRegisterResponse()

    async def CudaSharedMemoryUnregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, _context: RpcContext
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Unregisters a region, or all."""
        self._memory.check_allowed()
        self._memory.remove("cuda", request.name)
        return pb.CudaSharedMemoryUnregisterResponse()


class RestSharedMemoryServicer:
    """Of ``tensorgate.rest.v1.Rest``."""

    def __init__(self, memory: SharedMemory, limits: LimitsSettings) -> None:
        self._memory = memory
        self._limits = limits

    async def SystemSharedMemoryStatus(self, request: rest_pb2.RestRegionRequest, _context: RpcContext) -> HttpBody:
        """The registered regions, or one."""
        self._memory.check_allowed()
        regions = self._memory.statuses("system", request.region)
        return http_json([{"name": item.name, "key": item.key, "offset": item.offset, "byte_size": item.byte_size} for item in regions])

    async def SystemSharedMemoryRegister(self, request: rest_pb2.RestRegionRequest, _context: RpcContext) -> HttpBody:
        """Registers a region."""
        self._memory.check_allowed()
        body = self._body(request, frozenset({"key", "offset", "byte_size"}))
        key, byte_size, offset = text(body.get("key"), "key"), _count(body, "byte_size"), _count(body, "offset", 0)
        register_system(self._memory, RegionStatus(request.region, "system", byte_size, key, offset))
        return http_json({})

    async def SystemSharedMemoryUnregister(self, request: rest_pb2.RestRegionRequest, _context: RpcContext) -> HttpBody:
        """Unregisters a region, or all."""
        self._memory.check_allowed()
        self._memory.remove("system", request.region)
        return http_json({})

    async def CudaSharedMemoryStatus(self, request: rest_pb2.RestRegionRequest, _context: RpcContext) -> HttpBody:
        """The registered regions, or one."""
        self._memory.check_allowed()
        regions = self._memory.statuses("cuda", request.region)
        return http_json([{"name": item.name, "device_id": item.device_id, "byte_size": item.byte_size} for item in regions])

    async def CudaSharedMemoryRegister(self, request: rest_pb2.RestRegionRequest, _context: RpcContext) -> HttpBody:
        """Registers a region."""
        self._memory.check_allowed()
        body = self._body(request, frozenset({"raw_handle", "device_id", "byte_size"}))
        handle = members(body.get("raw_handle"), "raw_handle")
        status = RegionStatus(request.region, "cuda", _count(body, "byte_size"), device_id=_count(body, "device_id", 0))
        await register_cuda(self._memory, status, _from_base64(text(handle.get("b64"), "raw_handle.b64")))
        return http_json({})

    async def CudaSharedMemoryUnregister(self, request: rest_pb2.RestRegionRequest, _context: RpcContext) -> HttpBody:
        """Unregisters a region, or all."""
        self._memory.check_allowed()
        self._memory.remove("cuda", request.region)
        return http_json({})

    def _body(self, request: rest_pb2.RestRegionRequest, known: frozenset[str]) -> Mapping[str, Any]:
        body = members(parse_document(request.body.data, self._limits).root, "body")
        refuse_unknown(body, known, "body")
        return body


def _count(body: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise InvalidArgument(f"{key}: wanted a non-negative integer")
    return value


def _from_base64(value: str) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise InvalidArgument("raw_handle.b64: wanted standard base64 with padding") from None
