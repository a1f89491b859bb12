"""Calls made of bytes: messages as they are on the wire, through every gRPC door, and what came back."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from protos.inference import grpc_service_pb2 as pb
from tests.support.doors import TIMEOUT_S, Addresses

GRPC_DOORS = ("node", "edge", "web", "web text")
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 5, 8
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class WireAnswer:
    """A call's ``grpc-status``, its text, and the answered message."""

    code: int
    text: str
    message: bytes = b""

    def infer_response(self) -> pb.ModelInferResponse:
        """The message of a ModelInfer that succeeded."""
        assert self.code == 0, self.text
        return pb.ModelInferResponse.FromString(self.message)


def call_bytes(addresses: Addresses, door: str, message: bytes, path: str = MODEL_INFER) -> WireAnswer:
    """One unary call through one of ``GRPC_DOORS``."""
    if door.startswith("web"):
        return _web_call(addresses, message, path, is_text=door == "web text")
    with grpc.insecure_channel(addresses.node_grpc if door == "node" else addresses.edge_grpc, options=_UNLIMITED) as channel:
        try:
            call: Callable[..., bytes] = channel.unary_unary(path)
            return WireAnswer(0, "", call(message, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            return WireAnswer(error.code().value[0], error.details() or "")


def infer(addresses: Addresses, door: str, request: pb.ModelInferRequest) -> WireAnswer:
    """ModelInfer through one of ``GRPC_DOORS``."""
    return call_bytes(addresses, door, request.SerializeToString())


def rest_error(reply: httpx.Response, status: int) -> str:
    """The text of an error in the form of its door: ``{"error"}`` on /v2, google.rpc.Status elsewhere; one line."""
    assert reply.status_code == status, (reply.status_code, reply.text[:500])
    assert reply.headers["content-type"].startswith("application/json")
    body = reply.json()
    is_v2 = reply.request.url.path.startswith("/v2")
    assert set(body) == ({"error"} if is_v2 else {"code", "message", "details"})
    text: str = body["error" if is_v2 else "message"]
    assert text
    assert "\n" not in text
    return text


def _web_call(addresses: Addresses, message: bytes, path: str, *, is_text: bool) -> WireAnswer:
    kind = "application/grpc-web-text+proto" if is_text else "application/grpc-web+proto"
    content = b"\0" + len(message).to_bytes(4, "big") + message
    headers = {"content-type": kind, "accept": kind, "x-grpc-web": "1"}
    body = base64.b64encode(content) if is_text else content
    reply = httpx.post(addresses.edge_url + path, content=body, headers=headers, timeout=TIMEOUT_S)
    fields: dict[str, Any] = dict(reply.headers)
    # A text body is base64 of pieces, each with its own padding.
    rest, answered = (_pieces(reply.content) if is_text else reply.content), b""
    while rest:
        flag, length = rest[0], int.from_bytes(rest[1:5], "big")
        payload, rest = rest[5 : 5 + length], rest[5 + length :]
        if flag & 0x80:
            fields |= dict(line.split(":", 1) for line in payload.decode().split("\r\n") if line)
        else:
            answered = payload
    return WireAnswer(int(fields["grpc-status"]), httpx.URL("http://x/?m=" + fields.get("grpc-message", "")).params["m"], answered)


def _pieces(text: bytes) -> bytes:
    return b"".join(base64.b64decode(piece) for piece in re.findall(rb"[^=]+=*", text))
