"""How much memory a loaded model version takes: what model.toml says, or an estimate from its files.

Measuring instead would mean to compare the process's memory before and after, which says little while other models work. The estimate
for an engine that reads files is their size, times a factor for what it makes of them, and a sum for each model; bench/many_models.py
compares it with what is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.placement import placed_instances
from core_grpc.models.repository import RepositoryEntry

_ENGINE_BYTES: Mapping[str, int] = {"onnxruntime": 384 << 10, "python": 32 << 20, "identity": 64 << 10}
"""What a model costs before its weights, by backend: of Python each instance is a process with numpy."""
_OTHER_ENGINE_BYTES = 1 << 20
_COPIES = 1.5
"""ONNX Runtime packs the weights of large operators anew; EfficientNet-Lite0 takes 1.3 to 1.7 times its file."""


def resident_bytes(entry: RepositoryEntry, instances: Sequence[InstanceGroup]) -> Mapping[str, int]:
    """Bytes by device of one model version; blocks on the disk.

    Instances on the CPU share the weights, save for those that are processes; on a GPU each has a copy. What model.toml says is taken for
    each device as it is.
    """
    devices = Counter(placed.placement.device for placed in placed_instances(instances))
    declared = entry.config.resident_bytes
    if declared is not None:
        return dict.fromkeys(devices, declared)
    nbytes = _ENGINE_BYTES.get(entry.backend, _OTHER_ENGINE_BYTES) + int(_files_bytes(entry.directory) * _COPIES)
    return {device: nbytes * (1 if device == "cpu" and entry.backend != "python" else count) for device, count in devices.items()}


def _files_bytes(directory: Path) -> int:
    """Of the version's directory: the model's file and the external data that it names are both in it."""
    try:
        return sum(item.stat().st_size for item in directory.rglob("*") if item.is_file())
    except OSError:
        return 0
