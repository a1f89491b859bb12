"""What a load request may say instead of what is on the disk: parts of the configuration, and whole files."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core_grpc.errors import InvalidArgument, ModelLoadFailed, quoted
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.model_config import InputConfig, ModelConfig, OutputConfig
from core_grpc.models.version_policy import VersionPolicy
from core_grpc.types import Datatype

_FILE = re.compile(r"(0|[1-9][0-9]{0,17})/([A-Za-z0-9_][A-Za-z0-9_.-]{0,199})")
"""``<version>/<file>``: one directory deep, and no way out of it."""


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """An input or output as the request declares it, without the batch dimension where ``max_batch_size`` gives one."""

    datatype: Datatype
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadOverride:
    """What differs from the disk; ``None`` and empty leave things as they are."""

    max_batch_size: int | None = None
    backend: str = ""
    instances: tuple[InstanceGroup, ...] | None = None
    max_queue_delay_s: float | None = None
    versions: VersionPolicy | None = None
    inputs: Mapping[str, TensorOverride] = field(default_factory=dict)
    outputs: Mapping[str, TensorOverride] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By ``<version>/<file>``. Where there are any, the model's directory on the disk is not looked at."""

    def applied(self, config: ModelConfig) -> ModelConfig:
        """The configuration with the differences."""
        changes: dict[str, Any] = {}
        for name in ("max_batch_size", "instances", "versions"):
            if (value := getattr(self, name)) is not None:
                changes[name] = value
        if self.max_queue_delay_s is not None:
            changes["batching"] = replace(config.batching, max_queue_delay_s=self.max_queue_delay_s)
        if self.backend:
            changes["backend"] = self.backend
        max_batch_size = self.max_batch_size if self.max_batch_size is not None else config.max_batch_size
        lead = (-1,) if max_batch_size else ()
        if self.inputs:
            changes["inputs"] = {
                **config.inputs,
                **{
                    name: replace(config.inputs.get(name, InputConfig()), datatype=item.datatype, shape=(*lead, *item.dims))
                    for name, item in self.inputs.items()
                },
            }
        if self.outputs:
            changes["outputs"] = {
                **config.outputs,
                **{
                    name: replace(config.outputs.get(name, OutputConfig()), datatype=item.datatype, shape=(*lead, *item.dims))
                    for name, item in self.outputs.items()
                },
            }
        return replace(config, **changes)


def written_files(name: str, files: Mapping[str, bytes]) -> Path:
    """A private repository with one model that has these files; whoever asked removes it. Blocks on the disk.

    Raises:
        InvalidArgument: a file's name is not ``<version>/<file>``, or is code.
        ModelLoadFailed: they cannot be written.
    """
    for path in files:
        if not _FILE.fullmatch(path):
            raise InvalidArgument(
                f"failed to load {quoted(name)}, Invalid file path {quoted(path)}: wanted <version>/<file name>, such as 1/model.onnx"
            )
        if path.endswith((".py", ".so")):
            # Who may load models is not thereby one who may run code here.
            raise InvalidArgument(
                f"failed to load {quoted(name)}, file {quoted(path)}: code is only taken from the repository on the server's disk"
            )
    root = Path(tempfile.mkdtemp(prefix="tensorgate-model-"))
    try:
        for path, content in files.items():
            target = root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        shutil.rmtree(root, ignore_errors=True)
        raise ModelLoadFailed(f"the files cannot be written: {error.strerror}") from None
    return root
