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
            create: makes an executor in a place, for a compute stream, in ``prepare`` or on the thread of an instance's first lane.
            placements: where instances will run; those on the CPU are left out.
            graphs: CUDA graphs of each lane; 0 for none.
            device: gives the GPU of a number.

        Raises:
            ModelLoadFailed: a GPU cannot be used, or cuda-python is not installed.
        """
        self._create = create
        self._graphs = graphs
        self._placements = tuple(place for place in placements if place.kind == "gpu")
        self._devices = {place.device_id: device(place.device_id) for place in self._placements}
        self._open: dict[Placement, tuple[Pipeline, int]] = {}
        """By place, a pipeline that has lanes to open, and how many."""
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def lanes(self, placement: Placement) -> int:
        """See ``LoadedDeviceModel``."""
        return LANES if placement.kind == "gpu" else 1

    def prepare(self) -> Executor:
        """Makes the first pipeline of each place now, on this thread, so that what the engine refuses is found at load. Gives the first
        place's executor.

        Raises:
            ValueError: no place is a GPU.
            as ``create_instance``; the model is closed then.
        """
        if not self._placements:
            raise ValueError("wanted a place on a GPU")
        try:
            for placement in self._placements:
                self._open[placement] = (self._pipeline(placement), LANES)
        except BaseException:
            self.close()
            raise
        return self._open[self._placements[0]][0].executor

    def create_instance(self, placement: Placement) -> Lane:
        """A lane: the next of the last pipeline in that place, or the first of a new one.

        Raises:
            BackendFailed: the GPU fails, or has failed.
            whatever ``create`` raises.
        """
        with self._lock:
            if placement not in self._open:
                self._open[placement] = (self._pipeline(placement), LANES)
            pipeline, left = self._open.pop(placement)
            lane = pipeline.open_lane()
            if left > 1:
                self._open[placement] = (pipeline, left - 1)
            return lane

    def watch_device(self, watcher: Callable[[str], None]) -> None:
        """See ``LoadedDeviceModel``."""
        for device in self._devices.values():
            self._ends.append(device.watch(watcher))

    def close(self) -> None:
        """After the lanes are closed; idempotent."""
        while self._ends:
            self._ends.pop()()
        while self._open:
            self._open.popitem()[1][0].close()

    def _pipeline(self, placement: Placement) -> Pipeline:
        return Pipeline(self._devices[placement.device_id], lambda stream: self._create(placement, stream), self._graphs)
