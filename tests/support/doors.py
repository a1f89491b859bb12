"""Every door as a function from a vector to an answer, by real clients over real sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np

from protos.inference import grpc_service_pb2 as oip
from protos.tensorgate.v1 import inference_pb2 as tg
from tests.support.vectors import DTYPES, Vector, VectorTensor

TIMEOUT_S = 20.0

HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The canonical table, for the statuses that vectors speak of."""

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
VALUES = {
    "BOOL": "bool_values",
    "INT8": "int_values",
    "INT16": "int_values",
    "INT32": "int_values",
    "INT64": "int64_values",
    "UINT8": "int_values",
    "UINT16": "int_values",
    "UINT32": "int64_values",
    "UINT64": "uint64_values",
    "FP16": "float_values",
    "BF16": "float_values",
    "FP32": "float_values",
    "FP64": "double_values",
    "BYTES": "bytes_values",
}


@dataclass(frozen=True)
class Addresses:
    """Where a stack listens."""

    edge_url: str
    """``http://host:port`` of the edge."""
    edge_grpc: str
    """``host:port`` of the edge, for native gRPC."""
    node_grpc: str
    """``host:port`` of the node's own listener."""


@dataclass(frozen=True)
class Answer:
    """What a door answered: outputs, or a status (a gRPC name, or an HTTP number) with a text."""

    outputs: dict[str, tuple[str, list[int], np.ndarray[Any, Any]]]
    """By name: datatype, shape, flat values."""
    status: str | int = "OK"
    message: str = ""


Door = Callable[[Addresses, Vector], Answer]


def native_grpc(target: Callable[[Addresses], str], *, typed: bool) -> Door:
    """``inference.GRPCInferenceService/ModelInfer``, raw or typed contents."""

    def call(addresses: Addresses, vector: Vector) -> Answer:
        return _unary(
            target(addresses),
            "/inference.GRPCInferenceService/ModelInfer",
            _oip_request(vector, typed=typed),
            oip.ModelInferResponse,
            _oip_answer,
        )

    return call


def tensorgate_grpc(addresses: Addresses, vector: Vector) -> Answer:
    """``tensorgate.v1.InferenceService/Predict`` on the node."""
    return _unary(addresses.node_grpc, "/tensorgate.v1.InferenceService/Predict", _tg_request(vector), tg.PredictResponse, _tg_answer)


def grpc_web(addresses: Addresses, vector: Vector) -> Answer:
    """ModelInfer over gRPC-Web, binary."""
    message = _oip_request(vector, typed=False).SerializeToString()
    reply = httpx.post(
        f"{addresses.edge_url}/inference.GRPCInferenceService/ModelInfer",
        content=b"\0" + len(message).to_bytes(4, "big") + message,
        headers={"content-type": "application/grpc-web+proto", "x-grpc-web": "1"},
        timeout=TIMEOUT_S,
    )
    trailers = dict(reply.headers)
    body, response = reply.content, oip.ModelInferResponse()
    while body:
        flag, length = body[0], int.from_bytes(body[1:5], "big")
        payload, body = body[5 : 5 + length], body[5 + length :]
        if flag & 0x80:
            trailers |= dict(line.split(":", 1) for line in payload.decode().split("\r\n") if line)
        else:
            response.ParseFromString(payload)
    status = int(trailers["grpc-status"])
    if status:
        name = next(code.name for code in grpc.StatusCode if code.value[0] == status)
        return Answer({}, name, httpx.URL("http://x/?" + "m=" + trailers.get("grpc-message", "")).params["m"])
    return _oip_answer(response)


def v1_json(addresses: Addresses, vector: Vector) -> Answer:
    """``POST /v1/models/{model}:predict`` with typed JSON."""
    body: dict[str, Any] = {"inputs": {item.name: _nested(_json_values(item, b64=False), item.shape) for item in vector.inputs}}
    if vector.outputs:
        body["outputs"] = vector.outputs
    reply = _post(addresses, f"/v1/models/{_path(vector)}:predict", json=body)
    if reply.status_code != 200:
        return _status_error(reply)
    return Answer({name: ("", [], np.array(values, dtype=object).reshape(-1)) for name, values in reply.json()["outputs"].items()})


def v1_protobuf_json(addresses: Addresses, vector: Vector) -> Answer:
    """``POST /v1/predict``: Predict as the transcoder's protobuf JSON."""
    inputs = [
        {"name": i.name, "datatype": i.datatype, "shape": i.shape, VALUES.get(i.datatype, "float_values"): _json_values(i, b64=True)}
        for i in vector.inputs
    ]
    body = {
        "model": vector.model,
        "version": vector.version,
        "inputs": inputs,
        "outputs": vector.outputs,
        "encoding": "TENSOR_ENCODING_VALUES",
    }
    reply = _post(addresses, "/v1/predict", json=body)
    if reply.status_code != 200:
        return _status_error(reply)
    outputs = {}
    for item in reply.json()["outputs"]:
        values = item[VALUES[item["datatype"]]]
        if item["datatype"] == "BYTES":
            values = [base64.b64decode(value) for value in values]
        outputs[item["name"]] = (item["datatype"], item["shape"], np.array(values, dtype=object))
    return Answer(outputs)


def v2_json(addresses: Addresses, vector: Vector) -> Answer:
    """``POST /v2/models/{model}/infer``, JSON both ways."""
    inputs = [{"name": i.name, "datatype": i.datatype, "shape": i.shape, "data": _json_values(i, b64=False)} for i in vector.inputs]
    body: dict[str, Any] = {"inputs": inputs}
    if vector.outputs:
        body["outputs"] = [{"name": name} for name in vector.outputs]
    reply = _post(addresses, f"/v2/models/{_path(vector)}/infer", json=body)
    if reply.status_code != 200:
        return _v2_error(reply)
    return _v2_answer(reply.json()["outputs"], b"")


def v2_binary(addresses: Addresses, vector: Vector) -> Answer:
    """The same with the binary tensor extension both ways."""
    inputs = [
        {"name": i.name, "datatype": i.datatype, "shape": i.shape, "parameters": {"binary_data_size": len(i.raw())}} for i in vector.inputs
    ]
    body: dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    if vector.outputs:
        body["outputs"] = [{"name": name} for name in vector.outputs]
    header = json.dumps(body).encode()
    reply = _post(
        addresses,
        f"/v2/models/{_path(vector)}/infer",
        content=header + b"".join(i.raw() for i in vector.inputs),
        headers={"inference-header-content-length": str(len(header)), "content-type": "application/octet-stream"},
    )
    if reply.status_code != 200:
        return _v2_error(reply)
    length = int(reply.headers.get("inference-header-content-length", len(reply.content)))
    return _v2_answer(json.loads(reply.content[:length])["outputs"], reply.content[length:])


DOORS: dict[str, Door] = {
    "grpc node raw": native_grpc(lambda a: a.node_grpc, typed=False),
    "grpc node typed": native_grpc(lambda a: a.node_grpc, typed=True),
    "grpc edge raw": native_grpc(lambda a: a.edge_grpc, typed=False),
    "tensorgate.v1": tensorgate_grpc,
    "grpc-web": grpc_web,
    "v1 json": v1_json,
    "v1 protobuf json": v1_protobuf_json,
    "v2 json": v2_json,
    "v2 binary": v2_binary,
}
"""All doors that a vector goes through."""


def _unary(target: str, path: str, request: Any, kind: Any, answer: Callable[[Any], Answer]) -> Answer:
    with grpc.insecure_channel(target, options=[("grpc.max_receive_message_length", -1)]) as channel:
        call: Callable[..., Any] = channel.unary_unary(
            path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=kind.FromString
        )
        try:
            return answer(call(request, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            return Answer({}, error.code().name, error.details() or "")


def _oip_request(vector: Vector, *, typed: bool) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=vector.model, model_version=vector.version)
    for item in vector.inputs:
        tensor = request.inputs.add(name=item.name, datatype=item.datatype, shape=item.shape)
        if typed and item.datatype in CONTENTS:
            getattr(tensor.contents, CONTENTS[item.datatype]).extend(item.array().tolist())
        else:
            request.raw_input_contents.append(item.raw() if item.datatype in (*DTYPES, "BYTES") else b"")
    for name in vector.outputs:
        request.outputs.add(name=name)
    return request


def _oip_answer(response: oip.ModelInferResponse) -> Answer:
    assert len(response.raw_output_contents) == len(response.outputs)
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return Answer({o.name: (o.datatype, list(o.shape), values_from_raw(o.datatype, raw)) for o, raw in pairs})


def _tg_request(vector: Vector) -> tg.PredictRequest:
    inputs = []
    for item in vector.inputs:
        tensor = tg.Tensor(name=item.name, datatype=item.datatype, shape=item.shape)
        if item.datatype in VALUES:
            getattr(tensor, VALUES[item.datatype]).extend(item.array().tolist())
        inputs.append(tensor)
    return tg.PredictRequest(
        model=vector.model, version=vector.version, inputs=inputs, outputs=vector.outputs, encoding=tg.TENSOR_ENCODING_RAW, top_k=-1
    )


def _tg_answer(response: tg.PredictResponse) -> Answer:
    return Answer({o.name: (o.datatype, list(o.shape), values_from_raw(o.datatype, o.raw)) for o in response.outputs})


def values_from_raw(datatype: str, raw: bytes) -> np.ndarray[Any, Any]:
    """The flat values of a raw tensor."""
    if datatype != "BYTES":
        return np.frombuffer(raw, DTYPES[datatype])
    elements = []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        elements.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def _post(addresses: Addresses, path: str, **arguments: Any) -> httpx.Response:
    return httpx.post(addresses.edge_url + path, timeout=TIMEOUT_S, **arguments)


def _path(vector: Vector) -> str:
    return f"{vector.model}/versions/{vector.version}" if vector.version else vector.model


def _json_values(item: VectorTensor, *, b64: bool) -> list[Any]:
    if item.datatype == "BYTES":
        return [base64.b64encode(text.encode()).decode() for text in item.data] if b64 else item.data
    return item.data


def _nested(values: list[Any], shape: list[int]) -> Any:
    """Values in nested lists; as they are where the shape does not fit them (the door has to find out)."""
    if not shape or len(values) != np.prod(shape):
        return values
    for size in reversed(shape[1:]):
        values = [values[i : i + size] for i in range(0, len(values), size)] if size else values
    return values


def _status_error(reply: httpx.Response) -> Answer:
    assert reply.headers["content-type"].startswith("application/json"), reply.text
    body = reply.json()
    assert set(body) == {"code", "message", "details"}, body
    return Answer({}, reply.status_code, body["message"])


def _v2_error(reply: httpx.Response) -> Answer:
    assert reply.headers["content-type"].startswith("application/json"), reply.text
    body = reply.json()
    assert set(body) == {"error"}, body
    return Answer({}, reply.status_code, body["error"])


def _v2_answer(outputs: list[dict[str, Any]], binary: bytes) -> Answer:
    answer = {}
    for item in outputs:
        size = item.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = np.array(item["data"], dtype=object)
        else:
            values, binary = values_from_raw(item["datatype"], binary[:size]), binary[size:]
        answer[item["name"]] = (item["datatype"], item["shape"], values)
    assert not binary
    return Answer(answer)
