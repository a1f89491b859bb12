"""An ONNX model on GPUs: pipelines over its sessions, or plain sessions for a model with text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from core_grpc.backends.base import ModelSource, Placement
from core_grpc.backends.cuda.device import cuda_device
from core_grpc.backends.cuda.model import CudaInstances
from core_grpc.backends.onnxruntime.cuda_executor import OrtDevice, OrtExecutor
from core_grpc.backends.onnxruntime.external_data import CheckedFiles
from core_grpc.backends.onnxruntime.sessions import SessionOptions, session_for_stream, session_from_file
from core_grpc.backends.onnxruntime.specs import Tensors, tensors_of
from core_grpc.types import Datatype


@dataclass(frozen=True, slots=True)
class GpuModel:
    """See the module's text."""

    tensors: Tensors
    instances: CudaInstances | None
    """None for a model with text."""
    sessions: Mapping[Placement, Any]
    """For a model with text, by place."""

    def close(self) -> None:
        """After the instances are closed; idempotent."""
        if self.instances:
            self.instances.close()


class _HasTextError(Exception):
    """The pipeline holds tensors of numbers only."""


def load_on_gpus(model_file: Path, source: ModelSource, options: SessionOptions, checked: CheckedFiles) -> GpuModel:
    """The model in those of the source's places that are GPUs, of which there is one at least.

    Raises:
        ModelLoadFailed: the file is no model that the engine can run, or a GPU cannot be used.
        BackendFailed: a GPU failed.
    """

    def create(placement: Placement, stream: int) -> OrtExecutor:
        session, is_all_on_gpu = session_for_stream(model_file, placement, stream)
        checked.check_unchanged()
        tensors = tensors_of(session, source.declared_inputs)
        if Datatype.BYTES in tensors.datatypes:
            raise _HasTextError
        copy_within = device(placement.device_id).driver.copy_within
        ort_device = OrtDevice("cuda", placement.device_id)
        return OrtExecutor(session, *tensors, ort_device, copy_within, can_record=is_all_on_gpu)

    device = partial(cuda_device, budget_bytes=source.gpu_pool_bytes)
    instances = CudaInstances(create, source.placements, graphs=options.cuda_graphs, device=device)
    try:
        executor = instances.prepare()
    except _HasTextError:
        places = [place for place in source.placements if place.kind == "gpu"]
        sessions = {place: session_from_file(model_file, place, options.threads) for place in places}
        return GpuModel(tensors_of(sessions[places[0]], source.declared_inputs), None, sessions)
    return GpuModel(Tensors(tuple(executor.inputs), tuple(executor.outputs)), instances, {})
