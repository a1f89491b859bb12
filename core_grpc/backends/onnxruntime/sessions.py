"""ONNX Runtime's sessions: one for each place where a model runs, with the provider and the threads that belong there.

A session has threads of its own, one for each core less one, some 60 KB each. Small models get none: they run on the thread of their
instance, faster than with the others' help, which takes longer to call than the work. One pool for all sessions was left out: Python cannot
keep its threads from spinning, and a model asked every 5 ms then took a whole core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from core_grpc.backends.base import Gpus, Placement
from core_grpc.backends.onnxruntime.engine_errors import engine_text
from core_grpc.errors import ModelLoadFailed

MODEL_FILE = "model.onnx"

GRAPHS = 16

_OPTIONS = {"intra_op_threads": ("threads", 0), "cuda_graphs": ("cuda_graphs", GRAPHS)}
"""By key: the field, and its default."""

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_SMALL_BYTES = 1 << 20
"""Of the files in the version's directory."""
_SMALL_ROW = 1 << 16
"""Elements of one row of an input."""

_LOG_FATAL = 4
"""ONNX Runtime logs an error line for every request it refuses, with paths of its build. We raise what it raises; that is enough."""


def gpus_of(providers: Sequence[str], gpus: int) -> Gpus:
    """The GPUs that an onnxruntime with these execution providers can use, of ``gpus`` that the machine has."""
    if _CUDA not in providers:
        return Gpus(0, f"ONNX Runtime {onnxruntime.__version__} has no {_CUDA} here: it has {', '.join(providers)}")
    return Gpus(gpus, "this machine has no GPU")


class SessionOptions(NamedTuple):
    """``[onnxruntime]`` of model.toml."""

    threads: int = 0
    """``intra_op_threads``; 0 for one for each core, and one for a small model."""
    cuda_graphs: int = GRAPHS
    """On a GPU, for each lane."""


def session_options(table: Mapping[str, Any]) -> SessionOptions:
    """
    Raises:
        ModelLoadFailed: a value is out of range, or the table has something else.
    """
    for key in table:
        if key not in _OPTIONS:
            raise ModelLoadFailed(f"model.toml: [onnxruntime] {key}: no such option; it has {' and '.join(_OPTIONS)}")
    values = {field: table.get(key, default) for key, (field, default) in _OPTIONS.items()}
    for key, (field, _) in _OPTIONS.items():
        value = values[field]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1024:
            raise ModelLoadFailed(f"model.toml: [onnxruntime] {key}: wanted 0 to 1024, got {value!r}")
    return SessionOptions(**values)


def session_from_file(path: Path, placement: Placement, threads: int) -> Any:
    """An InferenceSession for the place; blocks while it optimises the graph.

    Without ``threads`` a model is small, and has one, whose files have at most 1 MiB and whose inputs have one size beyond the batch, with
    at most 65536 elements in a row.

    Raises:
        ModelLoadFailed: the file is no model that the engine can run, or its GPU cannot be used.
    """
    if threads or placement.kind == "gpu" or _files_bytes(path.parent) > _SMALL_BYTES:
        return _session(path, placement, threads)
    session = _session(path, placement, 1)
    return session if _has_small_rows(session) else _session(path, placement, threads)


def _files_bytes(directory: Path) -> int:
    return sum(item.stat().st_size for item in directory.iterdir() if item.is_file())


def _has_small_rows(session: Any) -> bool:
    rows = [node.shape[1:] for node in session.get_inputs()]
    return all(isinstance(size, int) for row in rows for size in row) and all(math.prod(row) <= _SMALL_ROW for row in rows)


def session_for_stream(path: Path, placement: Placement, stream: int) -> tuple[Any, bool]:
    """A session on a GPU whose work goes into the CUDA stream, and whether all of the model runs on the GPU.

    Raises:
        ModelLoadFailed: as ``session_from_file``.
    """
    provider = {"user_compute_stream": str(stream), "cudnn_conv_algo_search": "HEURISTIC"}
    try:
        return _session(path, placement, 0, provider, {"session.disable_cpu_ep_fallback": "1"}), True
    except ModelLoadFailed:
        # Some operator has no kernel for the GPU: the model still runs, with copies in between that no CUDA graph can hold.
        return _session(path, placement, 0, provider), False


def _session(
    path: Path, placement: Placement, threads: int, provider: Mapping[str, str] | None = None, entries: Mapping[str, str] | None = None
) -> Any:
    """``provider`` are options of the CUDA provider, ``entries`` of the session."""
    providers: list[Any] = [_CPU]
    if placement.kind == "gpu":
        # Finds the libraries that NVIDIA's Python packages bring.
        onnxruntime.preload_dlls()
        providers.insert(0, (_CUDA, {"device_id": placement.device_id, **(provider or {})}))
    options = _options(placement, threads)
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # noqa: BLE001 (its exceptions have no common base of their own)
        raise ModelLoadFailed(
            f"{path.name} is not a model that ONNX Runtime {onnxruntime.__version__} can run: {engine_text(error)}"
        ) from None
    # Without a library that the provider needs, the engine goes on with the CPU and says so in its own log only.
    if placement.kind == "gpu" and _CUDA not in session.get_providers():
        raise ModelLoadFailed(
            f'model.toml: [instances] kind: wanted "cpu", because {_CUDA} could not be started on GPU {placement.device_id} (are CUDA and '
            'cuDNN installed?), got "gpu"'
        )
    return session


def _options(placement: Placement, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _LOG_FATAL
    # Threads that spin for their next operator take the core that the event loop needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if placement.cores:
        options.intra_op_num_threads = threads = threads or len(placement.cores)
        if threads > 1:
            options.add_session_config_entry("session.intra_op_thread_affinities", _affinities(placement.cores, threads))
    return options


def _affinities(cores: Sequence[int], threads: int) -> str:
    """ONNX Runtime's text: processors, which it counts from 1, for each thread of its own. The calling thread is the remaining one."""
    return ";".join([",".join(str(core + 1) for core in cores)] * (threads - 1))
