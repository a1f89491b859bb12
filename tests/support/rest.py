"""Inference requests of ``/v2`` as a caller writes them by hand, JSON and binary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tests.support.doors import TIMEOUT_S
from tests.support.stack import Stack

JsonInput = tuple[str, str, Any, Any]
"""Name, datatype, shape, data."""
BinaryInput = tuple[str, str, Any, bytes]


def post_v2(stack: Stack, model: str, inputs: Sequence[JsonInput], **members: Any) -> httpx.Response:
    """``POST /v2/models/{model}/infer`` with JSON data; ``members`` are put beside the inputs."""
    keys = ("name", "datatype", "shape", "data")
    body = {"inputs": [dict(zip(keys, item, strict=True)) for item in inputs], **members}
    return httpx.post(f"{stack.addresses.edge_url}/v2/models/{model}/infer", json=body, timeout=TIMEOUT_S)


def binary_body(inputs: Sequence[BinaryInput], **members: Any) -> tuple[bytes, bytes]:
    """The JSON and the bytes behind it."""
    described = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, datatype, shape, data in inputs
    ]
    return json.dumps({"inputs": described, **members}).encode(), b"".join(data for *_, data in inputs)


def post_binary(
    stack: Stack, model: str, inputs: Sequence[BinaryInput], headers: Mapping[str, str] | None = None, **members: Any
) -> httpx.Response:
    """The same with the binary tensor extension; ``members`` may ask for outputs."""
    header, data = binary_body(inputs, **members)
    return httpx.post(
        f"{stack.addresses.edge_url}/v2/models/{model}/infer",
        content=header + data,
        headers={
            "inference-header-content-length": str(len(header)),
            "content-type": "application/octet-stream",
            **(headers or {}),
        },
        timeout=TIMEOUT_S,
    )
