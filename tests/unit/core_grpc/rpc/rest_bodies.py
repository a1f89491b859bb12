"""Model specs and bodies for the tests of the REST codec."""

from __future__ import annotations

import json
from typing import Any

from core_grpc.settings import LimitsSettings
from core_grpc.types import Datatype, InferResponse, ModelSpec, Tensor, TensorSpec, Timing

LIMITS = LimitsSettings()
PADDING_BYTES = 9000
"""Makes a body large enough for the parser of large bodies."""


def one_input(
    datatype: str = "FP32", shape: tuple[int, ...] = (-1, -1), max_batch_size: int = 8, accepts: str = "", labels: tuple[str, ...] = ()
) -> ModelSpec:
    """A model that gives its input X back as Y."""
    kind = Datatype(datatype)
    return ModelSpec(
        "m",
        "1",
        "identity",
        max_batch_size,
        (TensorSpec("X", kind, shape, accepts=accepts),),
        (TensorSpec("Y", kind, shape, labels=labels),),
    )


def two_inputs() -> ModelSpec:
    """A model with the inputs A and B and the outputs C and D, all INT32 of two columns."""
    inputs = tuple(TensorSpec(name, Datatype.INT32, (-1, 2)) for name in "AB")
    outputs = tuple(TensorSpec(name, Datatype.INT32, (-1, 2)) for name in "CD")
    return ModelSpec("m", "1", "identity", 8, inputs, outputs)


def infer_body(datatype: str, shape: Any, data: str, *, is_large: bool = False, **root: Any) -> bytes:
    """A v2 body with one input X; ``data`` is JSON text, so that it can be wrong or beyond what json.dumps writes."""
    fields = {"name": "X", "datatype": datatype, "shape": shape, "data": "DATA"}
    if is_large:
        root["parameters"] = {"padding": "x" * PADDING_BYTES}
    return json.dumps({"inputs": [fields], **root}).replace('"DATA"', data).encode()


def response(**outputs: Tensor) -> InferResponse:
    """An answer of model m."""
    return InferResponse("m", "1", "", outputs, Timing(0.001, 0.002, 0.003, 1))
