"""The ONNX Runtime backend.

One session for each loaded model and place (``sessions.py``): ``InferenceSession.run`` may be called from several threads, so instances
in one place share the weights. Inputs
and outputs are read from the model. An initializer that is also a graph input is an input with a default; it is offered, as an optional
input, when model.toml names it (``[input.NAME]``): old exporters list every weight there. Options of ``[onnxruntime]``:

* ``intra_op_threads = 0``: threads for one operator; 0 is one for each core, and one for a small model (``sessions.py``).
* ``cuda_graphs = 16``: on a GPU, how many CUDA graphs each lane keeps; 0 for none.

On a GPU the instances are pipelines (``core_grpc/backends/cuda``), save for models with text, which the pipeline cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime
from typing_extensions import override

from core_grpc.backends.base import ON_CPU, EngineTraits, Gpus, ModelInstance, ModelSource, Placement
from core_grpc.backends.gpus import visible_gpus
from core_grpc.backends.onnxruntime.engine_errors import failure_from_run
from core_grpc.backends.onnxruntime.external_data import check_external_data
from core_grpc.backends.onnxruntime.sessions import MODEL_FILE, gpus_of, session_from_file, session_options
from core_grpc.backends.onnxruntime.specs import tensors_of
from core_grpc.backends.onnxruntime.values import array_from_ort_value, bytes_from_strings, ort_value_from_array, strings_from_bytes
from core_grpc.errors import ModelLoadFailed
from core_grpc.types import Array, Datatype, TensorSpec

if TYPE_CHECKING:
    from core_grpc.backends.onnxruntime.gpu_model import GpuModel

_WARM_UP_RUNS = 2
"""Runs after which the memory they took is given back. The warm-up's are at batch 1 and at the largest batch, which may never come again:
for EfficientNet-Lite0 that is 75 MB. Without the arena altogether, a batch of 8 took a third more time."""


class _Instance:
    """Runs the shared session; holds nothing of its own."""

    def __init__(self, session: Any, placement: Placement, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        self._session = session
        self._names = [spec.name for spec in outputs]
        self._input_datatypes = {spec.name: spec.datatype for spec in inputs}
        self._text_inputs = tuple(spec.name for spec in inputs if spec.datatype is Datatype.BYTES)
        self._text_outputs = tuple(spec.name for spec in outputs if spec.datatype is Datatype.BYTES)
        self._output_datatypes = [spec.datatype for spec in outputs]
        # On a GPU the provider's own arena holds what counts, and it is sized by the provider's options.
        self._new_runs = _WARM_UP_RUNS if placement.kind == "cpu" else 0
        self._shrink_arena = onnxruntime.RunOptions()
        self._shrink_arena.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._needs_ort_values = any(spec.datatype is Datatype.BF16 for spec in (*inputs, *outputs))

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        feed = dict(inputs)
        for name in self._text_inputs:
            if name in feed:
                feed[name] = strings_from_bytes(feed[name], name)
        options = None
        if self._new_runs:
            self._new_runs -= 1
            options = self._shrink_arena
        try:
            arrays = self._run_ort_values(feed, options) if self._needs_ort_values else self._session.run(self._names, feed, options)
        except Exception as error:  # noqa: BLE001 (its exceptions have no common base of their own)
            raise failure_from_run(error) from None
        outputs: dict[str, Array] = dict(zip(self._names, arrays, strict=True))
        for name in self._text_outputs:
            outputs[name] = bytes_from_strings(outputs[name])
        return outputs

    def close(self) -> None:
        self._session = None

    def _run_ort_values(self, feed: Mapping[str, Array], options: Any) -> list[Array]:
        values = {name: ort_value_from_array(array, self._input_datatypes[name]) for name, array in feed.items()}
        results = self._session.run_with_ort_values(self._names, values, options)
        return [array_from_ort_value(value, datatype) for value, datatype in zip(results, self._output_datatypes, strict=True)]


@dataclass(slots=True)
class _Model:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sessions: dict[Placement, Any]

    def create_instance(self, placement: Placement = ON_CPU) -> ModelInstance:
        return _Instance(self.sessions[placement], placement, self.inputs, self.outputs)

    def close(self) -> None:
        self.sessions.clear()


@dataclass(slots=True)
class _GpuModel(_Model):
    """With instances on GPUs, and perhaps on the CPU as well."""

    gpu_model: GpuModel

    @override
    def create_instance(self, placement: Placement = ON_CPU) -> ModelInstance:
        if placement.kind == "cpu":
            return super(_GpuModel, self).create_instance(placement)
        if self.gpu_model.instances is None:
            return _Instance(self.gpu_model.sessions[placement], placement, self.inputs, self.outputs)
        return self.gpu_model.instances.create_instance(placement)

    def lanes(self, placement: Placement) -> int:
        """See ``LoadedDeviceModel``."""
        return self.gpu_model.instances.lanes(placement) if self.gpu_model.instances else 1

    def watch_device(self, watcher: Callable[[str], None]) -> None:
        """See ``LoadedDeviceModel``."""
        if self.gpu_model.instances:
            self.gpu_model.instances.watch_device(watcher)

    @override
    def close(self) -> None:
        super(_GpuModel, self).close()
        self.gpu_model.close()


class OnnxRuntimeBackend:
    """See the module's text."""

    platform = "onnxruntime_onnx"
    traits = EngineTraits(shares_copy=True, computes_on_device=True)

    def gpus(self) -> Gpus:
        """Those of the machine, where the installed onnxruntime has the CUDA provider."""
        return gpus_of(onnxruntime.get_available_providers(), visible_gpus())

    def load(self, source: ModelSource) -> _Model:
        """Reads ``model.onnx`` of the version's directory.

        Raises:
            ModelLoadFailed: missing, broken, an option or datatype we do not know, data outside the model's directory, or a GPU that the
                engine could not use.
        """
        options = session_options(source.options)
        model_file = source.directory / (source.model_file or MODEL_FILE)
        _check_file(model_file)
        checked = check_external_data(model_file)
        on_cpu = {place: session_from_file(model_file, place, options.threads) for place in source.placements if place.kind == "cpu"}
        gpu_model = None
        if len(on_cpu) < len(source.placements):
            from core_grpc.backends.onnxruntime.gpu_model import load_on_gpus  # noqa: PLC0415 (only where there are GPUs)

            gpu_model = load_on_gpus(model_file, source, options, checked)
        checked.check_unchanged()
        tensors = gpu_model.tensors if gpu_model else tensors_of(on_cpu[source.placements[0]], source.declared_inputs)
        return _Model(*tensors, on_cpu) if gpu_model is None else _GpuModel(*tensors, on_cpu, gpu_model)


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ModelLoadFailed(f"{path.name} is missing in the version directory")
    if not path.is_file():
        raise ModelLoadFailed(f"{path.name}: wanted a file, got a directory or something else")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise ModelLoadFailed(f"{path.name} cannot be read: {error.strerror}") from None
    if not start:
        raise ModelLoadFailed(f"{path.name} is empty (0 bytes)")
    if start.startswith(b"version https://git-lfs"):
        raise ModelLoadFailed(f"{path.name} is a Git LFS pointer, not the model: run `git lfs pull` in the repository it came from")
