"""gRPC over ASGI: the transport for a host that does HTTP/2 and hands requests over as ASGI (an Envoy that hosts Python).

The unary path is written for speed, since every small request pays for each step of the event loop: the body is read without a task,
and whether the caller still waits is looked at for all calls together (``caller_watch.py``).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Any, TypeAlias, cast

from google.protobuf.message import Message

from core_grpc.errors import GatewayError, InvalidArgument, LimitExceeded, StatusCode, one_line
from core_grpc.rpc.framing import PREFIX_BYTES, frame, message_length, status_message, timeout_s, unframed
from core_grpc.rpc.interceptors import RpcFailure, WireStatus, wire_status
from core_grpc.rpc.methods import RpcMethod, StreamHandler, UnaryHandler
from core_grpc.transports.caller_watch import CallerWatch, Receive, WatchedCall, disconnected
from core_grpc.transports.message_compression import (
    ACCEPTED,
    ASKED_HEADER,
    UNCOMPRESSED,
    MessageCompression,
    framed_answer,
    inflated_message,
    negotiated,
)

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_CONTENT_TYPE = (b"content-type", b"application/grpc")
_OK_TRAILERS = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0"), (b"grpc-message", b"")], "more_trailers": False}
_OK = WireStatus(StatusCode.OK, "")
_DEADLINE_EXCEEDED = WireStatus(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
_REQUEST_ID_CHARACTERS = 128
_READ_AHEAD_BYTES = 1 << 20
"""Of requests that nobody has taken yet: what HTTP/2's window lets through. The host tells behind them that a caller has left."""
_COMPRESSION_HEADERS = (b"grpc-encoding", ASKED_HEADER.encode())


class AsgiContext:
    """``RpcContext`` over an ASGI scope."""

    __slots__ = ("_metadata", "_request_id", "_scope", "deadline", "response_headers")

    def __init__(self, scope: Scope, deadline: float | None) -> None:
        self._scope = scope
        self._metadata: Mapping[str, str] | None = None
        self._request_id = ""
        self.deadline = deadline
        self.response_headers: list[tuple[bytes, bytes]] = [_CONTENT_TYPE]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The request's headers; of repeated ones the last."""
        if self._metadata is None:
            self._metadata = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._scope["headers"]}
        return self._metadata

    @property
    def from_edge(self) -> bool:
        """True on the private Unix socket, where the host knows no server address; no client can forge that."""
        return self._scope.get("server") is None

    @property
    def request_id(self) -> str:
        """The caller's or edge's ``x-request-id``, or a new one."""
        if not self._request_id:
            self._request_id = one_line(self.metadata.get("x-request-id", ""), _REQUEST_ID_CHARACTERS) or str(uuid.uuid4())
        return self._request_id

    def set_header(self, name: str, value: str) -> None:
        """Adds a response header."""
        self.response_headers.append((name.encode("latin-1"), value.encode("latin-1")))


class GrpcAsgiApp:
    """Serves a method table as an ASGI application (scope type ``http`` only)."""

    def __init__(
        self, methods: Mapping[str, RpcMethod], max_message_bytes: int, max_request_s: float, pool: Executor | None = None
    ) -> None:
        """``pool`` inflates and compresses large messages; by default the event loop's own."""
        self._methods = methods
        self._max_message_bytes = max_message_bytes
        self._max_request_s = max_request_s
        self._pool = pool
        self._watch = CallerWatch()
        self.active_calls = 0
        """Calls that have begun and not ended, save for those that no drain waits for (``RpcMethod.outlives_work``)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        grpc_timeout: bytes | None = None
        content_type = b""
        is_compressing = False
        for name, value in scope["headers"]:
            if name == b"grpc-timeout":
                grpc_timeout = value
            elif name == b"content-type":
                content_type = value
            elif name in _COMPRESSION_HEADERS:
                is_compressing = True
        if not content_type.startswith(b"application/grpc"):
            await _refuse_plain_http(send)
            return
        method = self._methods.get(scope["path"])
        if method is None:
            unknown = WireStatus(StatusCode.UNIMPLEMENTED, f"Method not found: {one_line(scope['path'], 200)}")
            await _send_status(send, [_CONTENT_TYPE], unknown)
            return
        context = AsgiContext(scope, _deadline(grpc_timeout))
        serve = self._stream if method.streams_requests or method.streams_responses else self._unary
        if method.outlives_work:
            await serve(method, context, receive, send, is_compressing)
            return
        self.active_calls += 1
        try:
            await serve(method, context, receive, send, is_compressing)
        finally:
            self.active_calls -= 1

    async def _unary(self, method: RpcMethod, context: AsgiContext, receive: Receive, send: Send, is_compressing: bool) -> None:
        if context.deadline is None:
            context.deadline = time.monotonic() + self._max_request_s
        call: WatchedCall | None = None
        try:
            compression = _negotiated(context) if is_compressing else UNCOMPRESSED
            body = await self._whole_body(receive)
            if body is None:
                return
            message: memoryview | bytearray | bytes = unframed(body, self._max_message_bytes)
            if body[0]:
                message = await inflated_message(message, compression.requests, self._max_message_bytes, self._pool)
            request = method.parse(message)
            call = self._watch.enter(lambda: disconnected(receive), context.deadline)
            payload = self._message(await cast("UnaryHandler", method.handler)(request, context))
            payload = await framed_answer(payload, compression.answers, self._pool) if compression.answers else frame(payload)
            self._watch.leave(call)
        except Exception as error:
            if call:
                self._watch.leave(call)
            if not isinstance(error, RpcFailure | GatewayError):
                raise
            await _send_status(send, context.response_headers, wire_status(error))
            return
        except asyncio.CancelledError:
            if call is None or not self._watch.leave(call):
                raise
            if call.deadline_passed:
                await _send_status(send, context.response_headers, _DEADLINE_EXCEEDED)
            return
        await send({"type": "http.response.start", "status": 200, "headers": context.response_headers, "trailers": True})
        await send({"type": "http.response.body", "body": payload, "more_body": False})
        await send(_OK_TRAILERS)

    def _message(self, response: Message) -> bytes:
        """The answer, serialized; one above the limit is refused, as the caller would refuse it."""
        message = response.SerializeToString()
        if len(message) > self._max_message_bytes:
            raise LimitExceeded(f"the answer has {len(message)} bytes: the limit is {self._max_message_bytes} (max_message_bytes)")
        return message

    async def _whole_body(self, receive: Receive) -> bytes | None:
        """The request's body; None when the caller left while sending it."""
        message = await receive()
        if message["type"] != "http.request":
            return None
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return body
        chunks, size = [body], len(body)
        while message.get("more_body", False):
            message = await receive()
            if message["type"] != "http.request":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_message_bytes + PREFIX_BYTES:
                raise LimitExceeded(
                    f"message of more than {size - PREFIX_BYTES} bytes: the limit is {self._max_message_bytes} (max_message_bytes)"
                )
        return b"".join(chunks)

    async def _stream(self, method: RpcMethod, context: AsgiContext, receive: Receive, send: Send, is_compressing: bool) -> None:
        reader = _MessageReader(receive, method, self._max_message_bytes, self._pool)
        call = self._watch.enter(reader.caller_has_left, context.deadline)
        has_begun = False
        status = _OK
        try:
            compression = reader.compression = _negotiated(context) if is_compressing else UNCOMPRESSED
            request: Any = aiter(reader) if method.streams_requests else await reader.only_message()
            async with aclosing(_responses(method, request, context)) as responses:
                async for response in responses:
                    if not has_begun:
                        has_begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": context.response_headers, "trailers": True})
                    payload = await framed_answer(self._message(response), compression.answers, self._pool)
                    await send({"type": "http.response.body", "body": payload, "more_body": True})
        except (RpcFailure, GatewayError) as error:
            status = wire_status(error)
        except asyncio.CancelledError:
            if not call.has_cancelled and not reader.caller_left:
                raise
            if not call.deadline_passed:
                return
            status = _DEADLINE_EXCEEDED
        finally:
            self._watch.leave(call)
        await _send_status(send, context.response_headers, status, has_begun=has_begun)


class _MessageReader:
    """The messages of a request stream, one after another, and whether the caller is still there."""

    def __init__(self, receive: Receive, method: RpcMethod, limit_bytes: int, pool: Executor | None) -> None:
        self.compression = UNCOMPRESSED
        self._pool = pool
        self._receive = receive
        self._method = method
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._has_ended = False
        self._fetching: asyncio.Future[MutableMapping[str, Any]] | None = None
        """The host's next message, when somebody waits for it."""
        self._taken = asyncio.Event()
        self.caller_left = False

    async def only_message(self) -> Message:
        """The one request of an RPC that does not stream requests; reads to the end of the body."""
        only: Message | None = None
        async for message in self:
            if only is not None:
                raise InvalidArgument("the request has more than one message")
            only = message
        if only is None:
            raise InvalidArgument("the request has no message")
        return only

    async def __aiter__(self) -> AsyncIterator[Message]:
        while await self._filled(PREFIX_BYTES):
            length = message_length(bytes(self._buffer[:PREFIX_BYTES]), self._limit_bytes)
            if not await self._filled(PREFIX_BYTES + length):
                raise InvalidArgument(f"the request stream ended inside a message of {length} bytes")
            is_compressed = self._buffer[0] != 0
            message: bytes | bytearray = bytes(self._buffer[PREFIX_BYTES : PREFIX_BYTES + length])
            del self._buffer[: PREFIX_BYTES + length]
            self._taken.set()
            if is_compressed:
                message = await inflated_message(message, self.compression.requests, self._limit_bytes, self._pool)
            yield self._method.parse(message)
        if self._buffer:
            raise InvalidArgument("the request stream ended inside a message")

    async def caller_has_left(self) -> None:
        """Waits until the caller leaves; reads ahead, as nobody may be reading."""
        while not self._has_ended and not self.caller_left:
            if len(self._buffer) < _READ_AHEAD_BYTES:
                await self._fetch()
            else:
                self._taken.clear()
                await self._taken.wait()
        if not self.caller_left:
            await disconnected(self._receive)

    async def _filled(self, size: int) -> bool:
        """Whether the buffer could be filled to ``size`` bytes."""
        while len(self._buffer) < size and not self._has_ended:
            if self.caller_left:
                # Ends the handler the way a cancelled task ends: nobody is left to be told anything else.
                raise asyncio.CancelledError
            await self._fetch()
        return len(self._buffer) >= size

    async def _fetch(self) -> None:
        """Takes in the host's next message; all who come while it is awaited wait for the same one."""
        fetching = self._fetching
        if fetching is None:
            fetching = self._fetching = asyncio.ensure_future(self._receive())
        # Shielded as in ``disconnected``: the host resolves the future that receive() gives, and a cancelled one it could not.
        message = await asyncio.shield(fetching)
        if self._fetching is not fetching:
            return  # Another who waited has taken it in.
        self._fetching = None
        if message["type"] != "http.request":
            self.caller_left = True
            return
        self._buffer += message.get("body", b"")
        self._has_ended = not message.get("more_body", False)


async def _responses(method: RpcMethod, request: Any, context: AsgiContext) -> AsyncGenerator[Any, None]:
    if method.streams_responses:
        async with aclosing(cast("StreamHandler", method.handler)(request, context)) as responses:
            async for response in responses:
                yield response
    else:
        yield await cast("UnaryHandler", method.handler)(request, context)


def _negotiated(context: AsgiContext) -> MessageCompression:
    context.set_header("grpc-accept-encoding", ACCEPTED)
    compression = negotiated(context.metadata)
    if compression.answers:
        context.set_header("grpc-encoding", compression.answers)
    return compression


def _deadline(grpc_timeout: bytes | None) -> float | None:
    seconds = None if grpc_timeout is None else timeout_s(grpc_timeout)
    return None if seconds is None else time.monotonic() + seconds


async def _send_status(send: Send, headers: list[tuple[bytes, bytes]], status: WireStatus, *, has_begun: bool = False) -> None:
    trailers = [(b"grpc-status", str(int(status.code)).encode()), (b"grpc-message", status_message(status.text))]
    trailers += [(name.encode(), value.encode()) for name, value in status.metadata]
    if not has_begun and len(headers) == 1:
        # "Trailers-Only": with headers and trailers apart, the edge would begin a stream's REST answer with 200 before it sees the failure.
        # Not where the handler has set headers: in this form callers would find them among the trailers.
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *trailers], "trailers": False})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    if not has_begun:
        await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    await send({"type": "http.response.trailers", "headers": trailers, "more_trailers": False})


async def _refuse_plain_http(send: Send) -> None:
    body = b'{"error": "this port speaks gRPC (content-type application/grpc); REST is served by the edge"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 415, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
