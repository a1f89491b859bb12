"""One answer of a door, looked at by a real client before the door is measured: h2load counts HTTP statuses only."""

from __future__ import annotations

import json

import grpc
import httpx
import numpy as np

from bench.load import Target
from bench.targets import Floats
from protos.inference.grpc_service_pb2 import ModelInferRequest, ModelInferResponse


def check(target: Target) -> None:
    """Calls the target once.

    Raises:
        RuntimeError: the answer is not the tensor that was sent.
    """
    answered = _by_grpc(target) if target.headers["content-type"] == "application/grpc" else _by_http(target)
    if not answered:
        raise RuntimeError(f"{target.name}: the answer is not the tensor that was sent")


def _by_grpc(target: Target) -> bool:
    url = httpx.URL(target.url)
    with grpc.insecure_channel(f"{url.host}:{url.port}") as channel:
        infer = channel.unary_unary(
            url.path, request_serializer=ModelInferRequest.SerializeToString, response_deserializer=ModelInferResponse.FromString
        )
        request = ModelInferRequest.FromString(target.body[5:])
        return infer(request, timeout=20).raw_output_contents == request.raw_input_contents


def _by_http(target: Target) -> bool:
    reply = httpx.post(target.url, content=target.body, headers=dict(target.headers), timeout=20)
    if reply.status_code != 200:
        return False
    if target.headers["content-type"].startswith("application/grpc-web"):
        sent = ModelInferRequest.FromString(target.body[5:]).raw_input_contents[0]
        return sent in reply.content and b"grpc-status:0" in reply.content
    if length := target.headers.get("inference-header-content-length"):
        return reply.content.endswith(target.body[int(length) :])
    sent_body = json.loads(target.body)
    if "binary_data_output" in sent_body.get("parameters", {}):
        return reply.content.endswith(np.array(sent_body["inputs"][0]["data"], np.float32).tobytes())
    return np.array_equal(_floats(sent_body, "inputs"), _floats(reply.json(), "outputs"))


def _floats(body: dict[str, object], side: str) -> Floats:
    """The one tensor of a JSON body, whatever its door calls the values."""
    tensors = body[side]
    tensor = next(iter(tensors.values())) if isinstance(tensors, dict) else tensors[0]  # type: ignore[index]
    values = tensor if isinstance(tensor, list) else next(tensor[key] for key in ("data", "float_values") if key in tensor)
    return np.array(values, np.float32).reshape(-1)
