"""The doors as h2load targets: the same identity tensor in every form, each checked once before it is measured."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from numpy.typing import NDArray

from bench.load import Target
from protos.inference import grpc_service_pb2 as oip

Floats: TypeAlias = NDArray[Any]

MODEL = "identity"

_GRPC_HEADERS = {"content-type": "application/grpc", "te": "trailers"}
_JSON_HEADERS = {"content-type": "application/json"}


def grpc_target(name: str, address: str, values: Floats) -> Target:
    """ModelInfer over native gRPC at ``host:port``."""
    return Target(name, f"http://{address}/inference.GRPCInferenceService/ModelInfer", _framed(_infer_request(values)), _GRPC_HEADERS)


def grpc_web_target(edge: str, values: Floats) -> Target:
    """ModelInfer over gRPC-Web, binary, on HTTP/1.1 as a browser without TLS speaks it."""
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    return Target(
        "gRPC-Web", f"http://{edge}/inference.GRPCInferenceService/ModelInfer", _framed(_infer_request(values)), headers, is_http1=True
    )


def v1_json_target(edge: str, values: Floats) -> Target:
    """``:predict`` with typed JSON."""
    body = json.dumps({"inputs": {"X": values.tolist()}}).encode()
    return Target("v1 JSON", f"http://{edge}/v1/models/{MODEL}:predict", body, _JSON_HEADERS, is_http1=True)


def v1_protobuf_json_target(edge: str, values: Floats) -> Target:
    """Predict as the transcoder's protobuf JSON."""
    tensor = {"name": "X", "datatype": "FP32", "shape": list(values.shape), "float_values": values.reshape(-1).tolist()}
    body = json.dumps({"model": MODEL, "inputs": [tensor]}).encode()
    return Target("v1 protobuf JSON", f"http://{edge}/v1/predict", body, _JSON_HEADERS, is_http1=True)


def v2_json_target(edge: str, values: Floats) -> Target:
    """``/v2`` infer, JSON both ways."""
    tensor = {"name": "X", "datatype": "FP32", "shape": list(values.shape), "data": values.reshape(-1).tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    return Target("v2 JSON", f"http://{edge}/v2/models/{MODEL}/infer", body, _JSON_HEADERS, is_http1=True)


def v2_json_in_target(name: str, edge: str, values: Floats, numbers: bytes) -> Target:
    """``/v2`` infer, JSON in and binary out: what parsing costs. ``numbers`` is the JSON array of the values, however it writes them."""
    shape = ",".join(map(str, values.shape))
    start = f'{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"X","datatype":"FP32","shape":[{shape}],"data":'
    url = f"http://{edge}/v2/models/{MODEL}/infer"
    return Target(name, url, start.encode() + numbers + b"}]}", _JSON_HEADERS, is_http1=True)


def v2_binary_target(edge: str, values: Floats) -> Target:
    """``/v2`` infer with the binary tensor extension both ways."""
    tensor = {"name": "X", "datatype": "FP32", "shape": list(values.shape), "parameters": {"binary_data_size": values.nbytes}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(header))}
    return Target("v2 binary", f"http://{edge}/v2/models/{MODEL}/infer", header + values.tobytes(), headers, is_http1=True)


def _infer_request(values: Floats) -> bytes:
    request = oip.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="X", datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request.SerializeToString()


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message
