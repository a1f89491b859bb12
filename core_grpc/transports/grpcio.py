"""grpc.aio: the reference transport, the debugger's path, and the fallback where no Envoy can host Python."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, cast

import grpc

from core_grpc.errors import GatewayError, StatusCode, one_line
from core_grpc.rpc.interceptors import RpcFailure, wire_status
from core_grpc.rpc.methods import RpcMethod, StreamHandler, UnaryHandler
from core_grpc.settings import NodeSettings
from core_grpc.transports.message_compression import asked_algorithm

_COMPRESSIONS = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_REQUEST_ID_CHARACTERS = 128


_MOST_PENDING = 1 << 20


def server_options(settings: NodeSettings) -> list[tuple[str, int]]:
    """Channel arguments of the server, each with its reason."""
    limit = settings.limits.max_message_bytes
    return [
        # The library's 4 MiB would refuse an ordinary image batch; one limit holds on every door.
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        # Clients may ping every 10 s, also without calls, as the common guides tell them; the default answers GOAWAY too_many_pings.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        # What arrives faster than Python takes it waits. By default the library cancels some of more than 1000, for no reason that the
        # caller could see; what a model may have waiting is bounded behind the door, with a status that says so.
        ("grpc.server.max_pending_requests", _MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
        # Two servers on one port by accident would share callers in silence.
        ("grpc.so_reuseport", int(settings.server.so_reuseport)),
    ]


class GrpcioContext:
    """``RpcContext`` over a grpc.aio context."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], max_request_s: float | None) -> None:
        self._context = context
        self._metadata: Mapping[str, str] | None = None
        self._request_id = ""
        self._headers: list[tuple[str, str]] = []
        self._compresses = False
        remaining = context.time_remaining()
        self.limit_s = max_request_s if remaining is None else None
        """How long the call may take where its caller, whose deadlines the library sees to, did not say."""
        remaining = max_request_s if remaining is None else remaining
        self.deadline = None if remaining is None else time.monotonic() + remaining

    @property
    def metadata(self) -> Mapping[str, str]:
        """The request's metadata, without binary values."""
        if self._metadata is None:
            pairs = self._context.invocation_metadata() or ()
            self._metadata = {key: value for key, value in pairs if isinstance(value, str)}
        return self._metadata

    @property
    def from_edge(self) -> bool:
        """True on the private Unix socket."""
        return self._context.peer().startswith("unix:")

    @property
    def request_id(self) -> str:
        """The caller's or edge's ``x-request-id``, or a new one."""
        if not self._request_id:
            self._request_id = one_line(self.metadata.get("x-request-id", ""), _REQUEST_ID_CHARACTERS) or str(uuid.uuid4())
        return self._request_id

    def set_header(self, name: str, value: str) -> None:
        """Adds a response header."""
        self._headers.append((name, value))

    def compress_as_asked(self) -> None:
        """Answers are compressed only for who asks: the library keeps to itself how the requests were compressed.

        Raises:
            InvalidArgument: by something that is not offered.
        """
        algorithm = asked_algorithm(self.metadata)
        if algorithm:
            self._context.set_compression(_COMPRESSIONS[algorithm])
            self._compresses = True

    async def send_headers(self) -> None:
        """Sends the headers that were set, if any; they travel before the first answer."""
        # The library applies the compression only to headers that are sent like this.
        if self._headers or self._compresses:
            await self._context.send_initial_metadata(tuple(self._headers))
            self._headers.clear()
            self._compresses = False


class GrpcioServer:
    """A grpc.aio server over a method table."""

    def __init__(self, methods: Mapping[str, RpcMethod], settings: NodeSettings) -> None:
        self._server = grpc.aio.server(options=server_options(settings))
        self._server.add_generic_rpc_handlers((_Handlers(methods, settings.limits.max_request_s),))

    def listen(self, address: str) -> int:
        """Adds a listener (``host:port`` or ``unix:/path``) and returns its port.

        Raises:
            OSError: the address cannot be had; the text says which.
        """
        try:
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: the address is taken or not this machine's") from error

    async def start(self) -> None:
        """Begins to answer."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, lets running ones finish for ``grace_s`` seconds, then ends them."""
        await self._server.stop(grace_s)


class _Handlers(grpc.GenericRpcHandler):
    """Finds a method's handler by its path."""

    def __init__(self, methods: Mapping[str, RpcMethod], max_request_s: float) -> None:
        self._handlers = {path: _rpc_handler(method, max_request_s) for path, method in methods.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler for a call; None answers UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)


def _rpc_handler(method: RpcMethod, max_request_s: float) -> grpc.RpcMethodHandler[Any, Any]:
    respond = _stream_behaviour(method) if method.streams_responses else _unary_behaviour(method, max_request_s)
    kind = f"{'stream' if method.streams_requests else 'unary'}_{'stream' if method.streams_responses else 'unary'}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    # Requests stay bytes until we parse them: the library would answer a malformed one with the exception's own text.
    handler: grpc.RpcMethodHandler[Any, Any] = make(respond, response_serializer=method.response_type.SerializeToString)
    return handler


def _unary_behaviour(method: RpcMethod, max_request_s: float) -> Any:
    handler = cast("UnaryHandler", method.handler)
    limit_s = None if method.streams_requests else max_request_s

    async def respond(request: Any, grpc_context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        context = GrpcioContext(grpc_context, limit_s)
        try:
            context.compress_as_asked()
            response = await _limited(handler(_parsed(method, request), context), context.limit_s)
        except (RpcFailure, GatewayError) as failure:
            return await _abort(grpc_context, context, failure)
        await context.send_headers()
        return response

    return respond


async def _limited(answer: Awaitable[Any], limit_s: float | None) -> Any:
    """The answer, within its limit.

    Raises:
        RpcFailure: it took longer.
    """
    if limit_s is None:
        return await answer
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise RpcFailure(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None


def _stream_behaviour(method: RpcMethod) -> Any:
    handler = cast("StreamHandler", method.handler)

    async def respond(request: Any, grpc_context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        context = GrpcioContext(grpc_context, None)
        try:
            context.compress_as_asked()
            async with aclosing(handler(_parsed(method, request), context)) as responses:
                async for response in responses:
                    await context.send_headers()
                    yield response
        except (RpcFailure, GatewayError) as failure:
            await _abort(grpc_context, context, failure)

    return respond


def _parsed(method: RpcMethod, request: Any) -> Any:
    """The request message, or the messages of a stream as they come."""
    return _parsed_stream(method, request) if method.streams_requests else method.parse(request)


async def _parsed_stream(method: RpcMethod, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for request in requests:
        yield method.parse(request)


async def _abort(grpc_context: grpc.aio.ServicerContext[Any, Any], context: GrpcioContext, failure: RpcFailure | GatewayError) -> None:
    await context.send_headers()
    status = wire_status(failure)
    await grpc_context.abort(_STATUS_CODES[status.code], status.text, status.metadata)
