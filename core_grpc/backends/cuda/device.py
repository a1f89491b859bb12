"""One GPU of this process: its driver, its memory pool, and whether it has failed for good.

After some errors (an illegal address in a kernel, for instance) CUDA answers every later call of the process with the same error: these
are sticky. No model of the process can use the GPU then, whichever caused it, so all who watch are told at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core_grpc.backends.cuda.driver import CudaDriver, CudaError, Driver
from core_grpc.backends.cuda.pool import DevicePool
from core_grpc.errors import BackendFailed

_log = logging.getLogger(__name__)


class CudaDevice:
    """See the module's text. May be used from any thread."""

    def __init__(self, driver: Driver, device_id: int = 0, budget_bytes: int = 0) -> None:
        """``budget_bytes`` is for the pool; 0 for no limit but the GPU's."""
        self.driver = driver
        self.device_id = device_id
        self.pool = DevicePool(driver.allocate, self._free, budget_bytes)
        self._fault = ""
        self._watchers: list[Callable[[str], None]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<CudaDevice {self.device_id}{': ' + self._fault if self._fault else ''}>"

    @property
    def fault(self) -> str:
        """Why it cannot be used any more; empty while it can."""
        return self._fault

    def check(self) -> None:
        """
        Raises:
            BackendFailed: it has failed for good.
        """
        if self._fault:
            raise BackendFailed(self._fault)

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Calls ``watcher`` with the reason when the GPU fails for good, on the thread that found out; at once if it has already. The
        returned function ends that."""
        with self._lock:
            self._watchers.append(watcher)
            fault = self._fault
        if fault:
            watcher(fault)
        return lambda: self._forget(watcher)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around work on the GPU: what fails in here is looked at, and where it is sticky the GPU counts as failed.

        Raises:
            BackendFailed: it had failed before, or fails now.
            whatever the work raises.
        """
        self.check()
        try:
            yield
        except CudaError as error:
            self._look_at(error)
            if not error.is_sticky:
                self._settle()
            raise
        except Exception:
            self._settle()
            raise

    def _settle(self) -> None:
        """After a failure half-way: nothing that was given to the GPU is under way any more. Whether the GPU failed beneath an engine's own
        exception is told by the GPU."""
        try:
            self.driver.finish()
        except CudaError as error:
            self._look_at(error)

    def _look_at(self, error: CudaError) -> None:
        if error.is_sticky:
            self._fail(f"GPU {self.device_id} has failed with {error.name} ({error.code}): this node must be restarted to use it again")

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._fault:
                return
            self._fault = reason
            watchers = list(self._watchers)
        _log.error("%s", reason)
        for watcher in watchers:
            watcher(reason)

    def _forget(self, watcher: Callable[[str], None]) -> None:
        with self._lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def _free(self, address: int) -> None:
        # What was on a GPU that failed goes with the process.
        if not self._fault:
            self.driver.free(address)


_devices: dict[int, CudaDevice] = {}
_devices_lock = threading.Lock()


def cuda_device(device_id: int, budget_bytes: int = 0) -> CudaDevice:
    """The GPU of that number, the same object for all of this process; the budget is that of the first who asks.

    Raises:
        ModelLoadFailed: there is no such GPU, or no cuda-python.
    """
    with _devices_lock:
        device = _devices.get(device_id)
        if device is None:
            device = _devices[device_id] = CudaDevice(CudaDriver(device_id), device_id, budget_bytes)
        return device
