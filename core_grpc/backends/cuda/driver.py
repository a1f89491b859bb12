"""Every CUDA call that the pipeline makes, behind one protocol: ``CudaDriver`` over cuda-python, and a fake of it in the tests.

Addresses, streams, events and graphs are plain integers. Copies and executions are asynchronous: they happen in the order of their
stream, and an event orders two streams. Host memory that takes part must be pinned.
"""

from __future__ import annotations

from typing import Any, Protocol

from core_grpc.errors import BackendFailed, ModelLoadFailed

_STICKY = frozenset(
    {
        # The codes after which CUDA answers every call of the process with the same error (CUDA Runtime API, cudaError).
        214,  # cudaErrorECCUncorrectable
        220,  # cudaErrorNvlinkUncorrectable
        226,  # cudaErrorContained
        700,  # cudaErrorIllegalAddress
        702,  # cudaErrorLaunchTimeout
        709,  # cudaErrorContextIsDestroyed
        710,  # cudaErrorAssert
        714,  # cudaErrorHardwareStackError
        715,  # cudaErrorIllegalInstruction
        716,  # cudaErrorMisalignedAddress
        717,  # cudaErrorInvalidAddressSpace
        718,  # cudaErrorInvalidPc
        719,  # cudaErrorLaunchFailure
        721,  # cudaErrorTensorMemoryLeak
    }
)

_OUT_OF_MEMORY = 2


class CudaError(BackendFailed):
    """A CUDA call failed. ``code`` is ``cudaError_t``."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"the GPU failed: {call} answered {name} ({code})")
        self.code = code
        self.name = name

    @property
    def is_sticky(self) -> bool:
        """Whether the GPU can be used again by another process only."""
        return self.code in _STICKY

    @property
    def is_out_of_memory(self) -> bool:
        """Whether there was not enough memory on the GPU, or of memory that can be pinned."""
        return self.code == _OUT_OF_MEMORY


class Driver(Protocol):
    """One GPU. Calls may come from any thread that called ``use`` before. Each raises CudaError."""

    def use(self) -> None:
        """Makes the calls of this thread concern this GPU."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Memory on the GPU; its address, aligned to 256 bytes."""
        ...

    def free(self, address: int) -> None:
        """Frees it, after all work that was given to the GPU."""
        ...

    def allocate_pinned(self, nbytes: int) -> int:
        """Host memory that copies may use while the host does something else; its address."""
        ...

    def free_pinned(self, address: int) -> None:
        """Frees it."""
        ...

    def create_stream(self) -> int:
        """A stream, which waits for no other by itself."""
        ...

    def destroy_stream(self, stream: int) -> None:
        """Frees it."""
        ...

    def create_event(self) -> int:
        """An event that nothing was recorded in; a host that waits for it sleeps."""
        ...

    def destroy_event(self, event: int) -> None:
        """Frees it."""
        ...

    def record(self, event: int, stream: int) -> None:
        """The event happens when what the stream was given so far is done."""
        ...

    def wait(self, stream: int, event: int) -> None:
        """What the stream is given from now on begins after the event, as it was last recorded."""
        ...

    def synchronize(self, event: int) -> None:
        """Blocks until the event, as it was last recorded, has happened."""
        ...

    def copy_in(self, device: int, pinned: int, nbytes: int, stream: int) -> None:
        """Host to GPU, in the stream's order."""
        ...

    def copy_out(self, pinned: int, device: int, nbytes: int, stream: int) -> None:
        """GPU to host, in the stream's order."""
        ...

    def copy_within(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """GPU to GPU, in the stream's order."""
        ...

    def begin_capture(self, stream: int) -> None:
        """What the stream is given from now on by this thread is not done but recorded, until ``end_capture``."""
        ...

    def end_capture(self, stream: int) -> int:
        """The recorded work as a graph that can be launched."""
        ...

    def launch(self, graph: int, stream: int) -> None:
        """Does what was recorded, with the addresses of that time, in the stream's order."""
        ...

    def destroy_graph(self, graph: int) -> None:
        """Frees it, once it is not executing any more."""
        ...

    def finish(self) -> None:
        """Blocks until all work of this process on the GPU is done; raises what went wrong with it."""
        ...


class CudaDriver:
    """``Driver`` over cuda-python's runtime bindings."""

    def __init__(self, device_id: int) -> None:
        """
        Raises:
            ModelLoadFailed: cuda-python is not installed, or there is no such GPU.
        """
        try:
            from cuda.bindings import runtime  # noqa: PLC0415 (an extra, imported when a model is placed on a GPU)
        except ImportError:
            raise ModelLoadFailed("a model on a GPU needs cuda-python: pip install 'cuda-python>=13,<14'") from None
        self._cuda: Any = runtime
        self._device_id = device_id
        self._to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._on_device = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._capture_mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        # The bindings' own objects by address: they must outlive what is made from them.
        self._objects: dict[int, Any] = {}
        try:
            self.use()
        except CudaError as error:
            raise ModelLoadFailed(f"GPU {device_id} cannot be used: CUDA answered {error.name} ({error.code})") from None

    def use(self) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaSetDevice, self._device_id)

    def allocate(self, nbytes: int) -> int:
        """See ``Driver``."""
        return int(self._call(self._cuda.cudaMalloc, nbytes))

    def free(self, address: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaFree, address)

    def allocate_pinned(self, nbytes: int) -> int:
        """See ``Driver``."""
        return int(self._call(self._cuda.cudaHostAlloc, nbytes, self._cuda.cudaHostAllocPortable))

    def free_pinned(self, address: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaFreeHost, address)

    def create_stream(self) -> int:
        """See ``Driver``."""
        return self._keep(self._call(self._cuda.cudaStreamCreateWithFlags, self._cuda.cudaStreamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaStreamDestroy, self._objects.pop(stream))

    def create_event(self) -> int:
        """See ``Driver``."""
        flags = self._cuda.cudaEventDisableTiming | self._cuda.cudaEventBlockingSync
        return self._keep(self._call(self._cuda.cudaEventCreateWithFlags, flags))

    def destroy_event(self, event: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaEventDestroy, self._objects.pop(event))

    def record(self, event: int, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaEventRecord, self._objects[event], self._objects[stream])

    def wait(self, stream: int, event: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaStreamWaitEvent, self._objects[stream], self._objects[event], 0)

    def synchronize(self, event: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaEventSynchronize, self._objects[event])

    def copy_in(self, device: int, pinned: int, nbytes: int, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaMemcpyAsync, device, pinned, nbytes, self._to_device, self._objects[stream])

    def copy_out(self, pinned: int, device: int, nbytes: int, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaMemcpyAsync, pinned, device, nbytes, self._to_host, self._objects[stream])

    def copy_within(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaMemcpyAsync, to, source, nbytes, self._on_device, self._objects[stream])

    def begin_capture(self, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaStreamBeginCapture, self._objects[stream], self._capture_mode)

    def end_capture(self, stream: int) -> int:
        """See ``Driver``."""
        graph = self._call(self._cuda.cudaStreamEndCapture, self._objects[stream])
        try:
            return self._keep(self._call(self._cuda.cudaGraphInstantiate, graph, 0))
        finally:
            self._call(self._cuda.cudaGraphDestroy, graph)

    def launch(self, graph: int, stream: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaGraphLaunch, self._objects[graph], self._objects[stream])

    def destroy_graph(self, graph: int) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaGraphExecDestroy, self._objects.pop(graph))

    def finish(self) -> None:
        """See ``Driver``."""
        self._call(self._cuda.cudaDeviceSynchronize)

    def _keep(self, thing: Any) -> int:
        address = int(thing)
        self._objects[address] = thing
        return address

    def _call(self, function: Any, *arguments: Any) -> Any:
        """The call's value, if it has one."""
        error, *values = function(*arguments)
        if error:
            # Forgets the error where it is one that can be forgotten, or the next call of somebody else would be told of it.
            self._cuda.cudaGetLastError()
            raise CudaError(function.__name__, int(error), getattr(error, "name", "an unknown error"))
        return values[0] if values else None
