"""A loaded model whose instances are pipelines on GPUs: what a backend gives for the places that are GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from core_grpc.backends.base import Placement
from core_grpc.backends.cuda.device import CudaDevice, cuda_device
from core_grpc.backends.cuda.executor import Executor
from core_grpc.backends.cuda.lane import Lane
from core_grpc.backends.cuda.pipeline import GRAPHS, LANES, Pipeline


class CudaInstances:
    """The pipelines of one model. Satisfies ``LoadedDeviceModel``, and ``LoadedModel`` but for the tensors."""

    def __init__(
        self,
        create: Callable[[Placement, int], Executor],
        placements: Sequence[Placement],
        *,
        graphs: int = GRAPHS,
        device: Callable[[int], CudaDevice] = cuda_device,
    ) -> None:
        """
        Args:
            create: makes an executor in a place, for a compute stream; called on the thread of the instance's first lane.
            placements: where instances will run; those on the CPU are left out.
            graphs: CUDA graphs of each lane; 0 for none.
            device: gives the GPU of a number.

        Raises:
            ModelLoadFailed: a GPU cannot be used, or cuda-python is not installed.
        """
        self._create = create
        self._graphs = graphs
        self._devices = {place.device_id: device(place.device_id) for place in placements if place.kind == "gpu"}
        self._half_open: dict[Placement, Pipeline] = {}
        """Pipelines that have lanes to open, by place."""
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def lanes(self, placement: Placement) -> int:
        """See ``LoadedDeviceModel``."""
        return LANES if placement.kind == "gpu" else 1

    def create_instance(self, placement: Placement) -> Lane:
        """A lane: the first of a new pipeline, or the next of the last one in that place.

        Raises:
            BackendFailed: the GPU fails, or has failed.
            whatever ``create`` raises.
        """
        with self._lock:
            pipeline = self._half_open.pop(placement, None)
            if pipeline is not None:
                return pipeline.open_lane()
            pipeline = Pipeline(self._devices[placement.device_id], lambda stream: self._create(placement, stream), self._graphs)
            lane = pipeline.open_lane()
            self._half_open[placement] = pipeline
            return lane

    def watch_device(self, watcher: Callable[[str], None]) -> None:
        """See ``LoadedDeviceModel``."""
        for device in self._devices.values():
            self._ends.append(device.watch(watcher))

    def close(self) -> None:
        """After the lanes are closed; idempotent."""
        while self._ends:
            self._ends.pop()()
        self._half_open.clear()
