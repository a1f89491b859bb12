"""CUDA shared memory against a fake of cuda-python's runtime bindings: what is called, and what failures become."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from types import SimpleNamespace

import pytest

from core_grpc.errors import AlreadyExists, BackendFailed, InvalidArgument, Unsupported
from core_grpc.rpc import shared_memory_servicers
from core_grpc.shared_memory.cuda import cuda_runtime, open_cuda_memory
from core_grpc.shared_memory.regions import RegionStatus, SharedMemory

HANDLE = bytes(range(64))
BASE = 0x7F00_0000_0000
SUCCESS, INVALID_VALUE = 0, 1


class FakeCudaRuntime:
    """One device with one allocation behind one handle, addressed as the real one's is."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)  # noqa: N815 (CUDA's name)
    cudaIpcMemLazyEnablePeerAccess = 1  # noqa: N815 (CUDA's name)

    def __init__(self) -> None:
        self.memory = bytearray(b"abcdefgh")
        self.is_open = False

    def cudaIpcMemHandle_t(self) -> SimpleNamespace:
        return SimpleNamespace(reserved=bytes(64))

    def cudaSetDevice(self, device: int) -> tuple[int]:
        return (SUCCESS if device == 0 else INVALID_VALUE,)

    def cudaIpcOpenMemHandle(self, handle: SimpleNamespace, flags: int) -> tuple[int, int]:
        if handle.reserved != HANDLE or flags != self.cudaIpcMemLazyEnablePeerAccess:
            return INVALID_VALUE, 0
        self.is_open = True
        return SUCCESS, BASE

    def cudaIpcCloseMemHandle(self, pointer: int) -> tuple[int]:
        assert pointer == BASE
        self.is_open = False
        return (SUCCESS,)

    def cudaMemcpy(self, target: int | bytearray, source: int | bytes, count: int, kind: int) -> tuple[int]:
        pointer = source if kind == self.cudaMemcpyKind.cudaMemcpyDeviceToHost else target
        assert isinstance(pointer, int)
        start = pointer - BASE
        if not self.is_open or start < 0 or start + count > len(self.memory):
            return (INVALID_VALUE,)
        if isinstance(target, bytearray):
            target[:count] = self.memory[start : start + count]
        else:
            assert not isinstance(source, int)
            self.memory[start : start + count] = source
        return (SUCCESS,)


def test_reads_and_writes_the_other_processes_memory() -> None:
    fake = FakeCudaRuntime()
    memory = open_cuda_memory(fake, HANDLE, 0, 8)
    assert memory.read(2, 3) == b"cde"
    memory.write(6, b"yz")
    assert fake.memory == b"abcdefyz"
    memory.close()
    assert not fake.is_open


def test_what_cuda_refuses_is_an_error_and_not_an_answer() -> None:
    memory = open_cuda_memory(FakeCudaRuntime(), HANDLE, 0, 16)
    with pytest.raises(BackendFailed, match="cudaMemcpy failed with error 1"):
        memory.read(0, 16)
    with pytest.raises(BackendFailed, match="cudaMemcpy failed with error 1"):
        memory.write(4, bytes(8))


@pytest.mark.parametrize(
    ("handle", "device", "byte_size", "message"),
    [
        (b"", 0, 8, "raw_handle: wanted 64 bytes, got 0"),
        (bytes(63), 0, 8, "raw_handle: wanted 64 bytes, got 63"),
        (HANDLE, 0, 0, "byte_size: wanted at least 1, got 0"),
        (HANDLE, 3, 8, "device_id: wanted a GPU of this machine, got 3"),
        (HANDLE[::-1], 0, 8, r"raw_handle: CUDA cannot open it \(error 1\)"),
    ],
)
def test_registrations_that_cannot_be_are_refused(handle: bytes, device: int, byte_size: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        open_cuda_memory(FakeCudaRuntime(), handle, device, byte_size)


@pytest.mark.skipif(importlib.util.find_spec("cuda") is not None, reason="cuda-python is installed")
def test_without_cuda_python_it_is_not_offered() -> None:
    with pytest.raises(Unsupported, match="CUDA shared memory needs a GPU and cuda-python"):
        cuda_runtime()


class FakeSlowCudaRuntime(FakeCudaRuntime):
    """Opens handles when the gate is opened, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.gate = threading.Event()
        self.open_count = 0

    def cudaIpcOpenMemHandle(self, handle: SimpleNamespace, flags: int) -> tuple[int, int]:
        self.is_asked.set()
        assert self.gate.wait(5)
        self.open_count += 1
        return super().cudaIpcOpenMemHandle(handle, flags)

    def cudaIpcCloseMemHandle(self, pointer: int) -> tuple[int]:
        self.open_count -= 1
        return super().cudaIpcCloseMemHandle(pointer)


async def test_a_region_is_opened_beside_the_event_loop_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSlowCudaRuntime()
    monkeypatch.setattr(shared_memory_servicers, "cuda_runtime", lambda: fake)
    memory = SharedMemory(is_allowed=True)
    status = RegionStatus("gpu", "cuda", 8)
    registrations = [asyncio.ensure_future(shared_memory_servicers.register_cuda(memory, status, HANDLE)) for _ in range(2)]
    await asyncio.to_thread(fake.is_asked.wait)
    fake.gate.set()  # Which nobody could if the loop were waiting.
    first, second = await asyncio.gather(*registrations, return_exceptions=True)
    assert sorted([type(first), type(second)], key=str) == sorted([type(None), AlreadyExists], key=str)
    assert fake.open_count == 1
    memory.close()
    assert fake.open_count == 0


async def test_a_region_whose_caller_leaves_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSlowCudaRuntime()
    monkeypatch.setattr(shared_memory_servicers, "cuda_runtime", lambda: fake)
    memory = SharedMemory(is_allowed=True)
    registration = asyncio.ensure_future(shared_memory_servicers.register_cuda(memory, RegionStatus("gpu", "cuda", 8), HANDLE))
    await asyncio.to_thread(fake.is_asked.wait)
    registration.cancel()
    await asyncio.gather(registration, return_exceptions=True)
    closed = asyncio.Event()
    monkeypatch.setattr(fake, "cudaIpcCloseMemHandle", lambda _pointer: closed.set())
    fake.gate.set()
    async with asyncio.timeout(5):
        await closed.wait()
    assert not memory.statuses("cuda")
