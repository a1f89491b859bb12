"""What a build depends on in this machine, read without any library of NVIDIA's."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from core_grpc.backends.gpus import visible_gpus

_DRIVER = Path("/proc/driver/nvidia/gpus")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's GPUs, as far as a build cares."""

    gpus: int
    device: str = ""
    """The name of the first GPU; empty where the driver does not tell."""


def this_machine() -> Machine:
    """The GPUs that this process may use. Blocks on the file system for an instant."""
    count = visible_gpus()
    return Machine(count, _first_name() if count else "")


def peak_resident_bytes() -> int:
    """The largest resident size of this process since its program began.

    Not ``ru_maxrss``: a program inherits that of the process that started it.
    """
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _first_name() -> str:
    try:
        for path in sorted(_DRIVER.glob("*/information")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("Model:"):
                    return line.removeprefix("Model:").strip()
    except OSError:
        pass
    return ""
