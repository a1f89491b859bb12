"""What a node does when a kernel reads where it must not: ``python -m bench.gpu.sticky REPOSITORY``. Prints one line of JSON.

The process is spent afterwards, which is the point: CUDA answers every further call of it with the same error.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import node
from core_grpc.data_plane import DataPlane
from core_grpc.errors import GatewayError
from core_grpc.models.registry import Registry

_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry write_to_nowhere() {
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""


def break_the_gpu() -> None:
    """Launches a kernel that writes to an illegal address."""
    from cuda.bindings import driver, runtime  # noqa: PLC0415 (only where there is a GPU)

    runtime.cudaSetDevice(0)
    module = _value(driver.cuModuleLoadData(_PTX))
    kernel = _value(driver.cuModuleGetFunction(module, b"write_to_nowhere"))
    _value(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))


def _value(result: tuple[Any, ...]) -> Any:
    error, *values = result
    if int(error):
        raise RuntimeError(f"CUDA driver: {error!r}")
    return values[0] if values else None


async def _asked(plane: DataPlane, name: str) -> tuple[float, str]:
    """How long one request took, in ms, and what it was told."""
    began = time.perf_counter()
    try:
        await plane.infer(node.request(name, X=np.ones((1, 8, 256), np.float32)))
    except GatewayError as error:
        return (time.perf_counter() - began) * 1000, f"{type(error).__name__}: {error.message}"
    return (time.perf_counter() - began) * 1000, ""


async def _main() -> dict[str, Any]:
    async with node.served(Path(sys.argv[1])) as (plane, registry):
        before = [await _asked(plane, name) for name in ("one", "two")]
        ready_before = plane.ready()
        break_the_gpu()
        first_ms, told = await _asked(plane, "one")
        ready_after, states = plane.ready(), _states(registry)
        after = [await _asked(plane, name) for name in ("one", "two") for _ in range(5)]
        return {
            "worked_before": ready_before and not any(text for _, text in before),
            "told": told,
            "first_ms": first_ms,
            "ready_after": ready_after,
            "states": states,
            "slowest_after_ms": max(took for took, _ in after),
            "failed_after": sum(bool(text) for _, text in after),
            "asked_after": len(after),
        }


def _states(registry: Registry) -> dict[str, str]:
    return {entry.name: f"{entry.state} {entry.reason}".strip() for entry in registry.entries()}


if __name__ == "__main__":
    print(json.dumps(node.run(_main)))
