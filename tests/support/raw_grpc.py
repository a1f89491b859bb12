"""A gRPC call made of HTTP/2 frames, for what no client library sends: frames that lie, encodings that do not exist, bombs."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived


@dataclass
class RawAnswer:
    """Headers and trailers together, and the frames of the messages."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    """A message with its prefix."""
    return bytes([is_compressed]) + len(message).to_bytes(4, "big") + message


def raw_call(address: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float = 20.0) -> RawAnswer:
    """One call with ``body`` as it is; fails when the stream or the connection is broken off."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        http.initiate_connection()
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": address, "te": "trailers"}
        http.send_headers(1, list({**fields, "content-type": "application/grpc", **headers}.items()))
        answer, rest = RawAnswer(), memoryview(body)
        while True:
            rest = _sent(http, rest)
            connection.sendall(http.data_to_send())
            received = connection.recv(1 << 16)
            assert received, f"the connection was closed after {answer.headers}"
            if _has_ended(http, received, answer):
                return answer


def _sent(http: H2Connection, rest: memoryview) -> memoryview:
    """What is left after as much was sent as the windows allow; the last byte ends the stream."""
    while rest and (size := min(http.local_flow_control_window(1), http.max_outbound_frame_size, len(rest))):
        http.send_data(1, bytes(rest[:size]), end_stream=size == len(rest))
        rest = rest[size:]
    return rest


def _has_ended(http: H2Connection, received: bytes, answer: RawAnswer) -> bool:
    has_ended = False
    for event in http.receive_data(received):
        if isinstance(event, ResponseReceived | TrailersReceived):
            answer.headers.update({str(name): str(value) for name, value in event.headers})
        elif isinstance(event, DataReceived):
            answer.body += event.data
            http.acknowledge_received_data(event.flow_controlled_length, 1)
        elif isinstance(event, StreamReset | ConnectionTerminated):
            # A server that has answered may reset what is left of the request.
            assert "grpc-status" in answer.headers, event
            return True
        has_ended = has_ended or isinstance(event, StreamEnded)
    return has_ended
