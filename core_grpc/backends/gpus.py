"""How many GPUs this process may use, without any of NVIDIA's libraries: from the device files and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_DEVICE_FILE = re.compile(r"nvidia\d+")


def visible_gpus() -> int:
    """NVIDIA's GPUs, numbered from 0 as CUDA numbers them. Blocks on the file system for an instant."""
    try:
        files = os.listdir("/dev")  # noqa: PTH208 (names are all that is wanted)
    except OSError:
        files = []
    return visible_count(files, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_count(device_files: Sequence[str], visible: str | None) -> int:
    """As ``visible_gpus``, from the names in /dev and the variable's value (None where it is not set).

    CUDA reads the variable up to the first entry that names no device.
    """
    count = sum(_DEVICE_FILE.fullmatch(name) is not None for name in device_files)
    if visible is None:
        return count
    entries = 0
    for entry in visible.split(","):
        text = entry.strip()
        if not (text.startswith(("GPU-", "MIG-")) or (text.isascii() and text.isdigit() and int(text) < count)):
            break
        entries += 1
    return min(entries, count)
