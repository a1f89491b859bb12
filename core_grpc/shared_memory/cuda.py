"""CUDA shared memory: device memory of another process, by its IPC handle.

Written against cuda-python's runtime bindings. The tests have a fake of them; by hand it ran between two processes on an H200
(cuda-bindings 13.3.1, driver 580).
"""

from __future__ import annotations

from typing import Any

from core_grpc.errors import BackendFailed, InvalidArgument, Unsupported

HANDLE_BYTES = 64
"""``cudaIpcMemHandle_t``."""


class CudaMemory:
    """Device memory that another process allocated."""

    def __init__(self, runtime: Any, pointer: int, device_id: int, byte_size: int) -> None:
        self._runtime = runtime
        self._pointer = pointer
        self._device_id = device_id
        self._byte_size = byte_size

    def read(self, offset: int, size: int) -> bytes:
        """See ``Memory``."""
        data = bytearray(min(size, self._byte_size - offset))
        self._call(self._runtime.cudaSetDevice, self._device_id)
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        # By the address of a buffer: the bindings take host memory as an integer or a buffer.
        self._call(self._runtime.cudaMemcpy, data, self._pointer + offset, len(data), kind)
        return bytes(data)

    def write(self, offset: int, data: bytes) -> None:
        """See ``Memory``."""
        self._call(self._runtime.cudaSetDevice, self._device_id)
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call(self._runtime.cudaMemcpy, self._pointer + offset, data, len(data), kind)

    def close(self) -> None:
        """See ``Memory``."""
        self._runtime.cudaIpcCloseMemHandle(self._pointer)

    def _call(self, function: Any, *arguments: Any) -> None:
        (error, *_) = function(*arguments)
        if int(error):
            raise BackendFailed(f"CUDA shared memory: {function.__name__} failed with error {int(error)}")


def cuda_runtime() -> Any:
    """cuda-python's runtime bindings, where they are installed and there is a GPU.

    Raises:
        Unsupported: one of the two is missing.
    """
    try:
        from cuda.bindings import runtime  # noqa: PLC0415 (an extra)
    except ImportError:
        raise Unsupported("CUDA shared memory needs a GPU and cuda-python, which this server does not have") from None
    error, count = runtime.cudaGetDeviceCount()
    if int(error) or not count:
        raise Unsupported("CUDA shared memory needs a GPU, which this server does not have")
    return runtime


def open_cuda_memory(runtime: Any, raw_handle: bytes, device_id: int, byte_size: int) -> CudaMemory:
    """The memory behind an IPC handle.

    Raises:
        InvalidArgument: the handle is no handle, or the runtime refuses it.
    """
    check_handle(raw_handle, byte_size)
    (error, *_) = runtime.cudaSetDevice(device_id)
    if int(error):
        raise InvalidArgument(f"device_id: wanted a GPU of this machine, got {device_id}")
    handle = runtime.cudaIpcMemHandle_t()
    handle.reserved = raw_handle
    error, pointer = runtime.cudaIpcOpenMemHandle(handle, runtime.cudaIpcMemLazyEnablePeerAccess)
    if int(error):
        raise InvalidArgument(f"raw_handle: CUDA cannot open it (error {int(error)})")
    return CudaMemory(runtime, int(pointer), device_id, byte_size)


def check_handle(raw_handle: bytes, byte_size: int) -> None:
    """Raises InvalidArgument where a handle or a size cannot be one."""
    if len(raw_handle) != HANDLE_BYTES:
        raise InvalidArgument(f"raw_handle: wanted {HANDLE_BYTES} bytes, got {len(raw_handle)}")
    if byte_size < 1:
        raise InvalidArgument(f"byte_size: wanted at least 1, got {byte_size}")
