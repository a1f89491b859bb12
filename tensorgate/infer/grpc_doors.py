"""The gRPC doors: native to the node's own listener, and gRPC-Web to the edge as a browser would send it."""

from __future__ import annotations

import struct
from urllib.parse import unquote

import grpc

from protos.tensorgate.v1 import inference_pb2, inference_pb2_grpc
from tensorgate.infer.call import Answer, Call, ClassScore, InferError
from tensorgate.infer.http_doors import post

_TRAILERS = 0x80
"""Flag of the gRPC-Web frame that holds the trailers."""
_MAX_MESSAGE_BYTES = (1 << 31) - 1


def native(call: Call) -> Answer:
    """``tensorgate.v1.InferenceService/Predict`` over HTTP/2."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES)]
    with grpc.insecure_channel(call.grpc_address, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        metadata = tuple(call.credentials.items())
        try:
            model = stub.GetModel(inference_pb2.GetModelRequest(model=call.model), timeout=call.timeout_s, metadata=metadata).model
            response = stub.Predict(_request(call, _image_input(model)), timeout=call.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise InferError(_reason(call, error)) from error
    return _answer(response)


def web(call: Call) -> Answer:
    """``tensorgate.v1.InferenceService/Predict`` as gRPC-Web: binary frames in one POST over HTTP/1.1."""
    model = inference_pb2.GetModelResponse.FromString(
        _web_call(call, "GetModel", inference_pb2.GetModelRequest(model=call.model).SerializeToString())
    )
    request = _request(call, _image_input(model.model))
    return _answer(inference_pb2.PredictResponse.FromString(_web_call(call, "Predict", request.SerializeToString())))


def _image_input(model: inference_pb2.Model) -> str:
    """The name of the input that takes a photograph."""
    name = next((spec.name for spec in model.inputs if spec.accepts == "image"), None)
    if name is None:
        raise InferError(
            f"model '{model.name}' takes no images: its inputs are {', '.join(spec.name for spec in model.inputs) or 'unknown'}"
        )
    return name


def _request(call: Call, name: str) -> inference_pb2.PredictRequest:
    tensor = inference_pb2.Tensor(name=name, datatype="BYTES", shape=[1, 1], bytes_values=[call.photo])
    return inference_pb2.PredictRequest(model=call.model, inputs=[tensor], top_k=call.top)


def _answer(response: inference_pb2.PredictResponse) -> Answer:
    rows = response.classes
    classes = tuple(ClassScore(item.label, item.index, item.score) for item in (rows[0].top if rows else ()))
    return Answer(response.model, response.version, classes)


def _reason(call: Call, error: grpc.RpcError) -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and "connect" in details:
        return f"nothing answers at {call.grpc_address}: start it with `tensorgate serve`, or name another with --grpc-address"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{call.grpc_address} did not answer within {call.timeout_s:g} s"
    return f"{code.name}: {' '.join(details.split())}"


def _web_call(call: Call, method: str, message: bytes) -> bytes:
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    frame = struct.pack(">BI", 0, len(message)) + message
    answer = post(call, f"/tensorgate.v1.InferenceService/{method}", content=frame, headers=headers)
    messages, trailers = _frames(answer.content)
    # A call that failed before its first message has its status in the headers, and no frame at all.
    status = trailers.get("grpc-status", answer.headers.get("grpc-status", ""))
    if status != "0":
        text = unquote(trailers.get("grpc-message", answer.headers.get("grpc-message", "")))
        raise InferError(f"{_status_name(status)}: {text}")
    if len(messages) != 1:
        raise InferError(f"one gRPC-Web message was expected, got {len(messages)}: is this address a Tensorgate edge?")
    return messages[0]


def _frames(body: bytes) -> tuple[list[bytes], dict[str, str]]:
    messages: list[bytes] = []
    trailers: dict[str, str] = {}
    place = 0
    while place + 5 <= len(body):
        flags, size = struct.unpack_from(">BI", body, place)
        content = body[place + 5 : place + 5 + size]
        place += 5 + size
        if flags & _TRAILERS:
            pairs = (line.partition(":") for line in content.decode().split("\r\n") if line)
            trailers.update({name.strip().lower(): value.strip() for name, _, value in pairs})
        else:
            messages.append(content)
    return messages, trailers


def _status_name(status: str) -> str:
    return next((code.name for code in grpc.StatusCode if str(code.value[0]) == status), f"grpc-status {status or 'missing'}")
