"""What the builder made of a network's layers, as TensorRT's inspector tells it: on a GPU that can read the plan, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core_grpc.backends.tensorrt.bindings import Bindings, logger_of

_JOINED = " + "
"""Between the names of layers that became one, in the name of that one."""
_ORIGIN = "[ONNX Layer:"
"""Before the name of each node, in what a layer says of where it is from."""


@dataclass(frozen=True, slots=True)
class Fusions:
    """The layers of an engine."""

    layers: int
    fused: tuple[str, ...]
    """The names of those that were several before."""


def read_fusions(bindings: Bindings, plan: bytes) -> Fusions | None:
    """Asks the inspector. None where this machine's GPU cannot read the plan; never call it without a GPU.

    The plan has to be built with detailed profiling verbosity: names are all that is there otherwise.
    """
    trt = bindings.module
    runtime = trt.Runtime(logger_of(bindings))
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return None
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return Fusions(int(engine.num_layers), fused_in(text))


def fused_in(text: str) -> tuple[str, ...]:
    """The names of fused layers in the inspector's JSON; none where it is no JSON, as versions differ in it."""
    try:
        table = json.loads(text)
    except ValueError:
        return ()
    layers: Sequence[Any] = table.get("Layers") or () if isinstance(table, dict) else ()
    return tuple(name for name, origin in map(_named, layers) if _JOINED in name or origin.count(_ORIGIN) > 1)


def _named(layer: Any) -> tuple[str, str]:
    """A layer's name and where it is from. With less verbosity a layer is its name alone."""
    if isinstance(layer, dict):
        return str(layer.get("Name", "")), str(layer.get("Metadata", ""))
    return str(layer), ""


__all__ = ["Fusions", "fused_in", "read_fusions"]
