"""The RPCs that a node offers, as data: both transports serve the same table."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from core_grpc.errors import InvalidArgument, Unsupported, quoted
from core_grpc.rpc.context import RpcContext

UnaryHandler: TypeAlias = Callable[[Any, RpcContext], Awaitable[Any]]
"""Request or iterator of requests, to one response."""
StreamHandler: TypeAlias = Callable[[Any, RpcContext], AsyncGenerator[Any, None]]
"""Request or iterator of requests, to responses. Closed when the call is over, however that comes about."""


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One RPC and the function that serves it."""

    path: str
    """``/package.Service/Method``."""
    request_type: type[Message]
    response_type: type[Message]
    streams_requests: bool
    streams_responses: bool
    handler: UnaryHandler | StreamHandler

    @property
    def outlives_work(self) -> bool:
        """Whether its streams last as long as their callers like (health, reflection): no drain waits for them."""
        return self.path.startswith("/grpc.")

    def parse(self, data: bytes | bytearray | memoryview) -> Message:
        """A request from its serialized form.

        Raises:
            InvalidArgument: the bytes are not such a message.
        """
        try:
            # protobuf reads any buffer; its stubs say bytes.
            return self.request_type.FromString(cast("bytes", data))
        except DecodeError:
            raise InvalidArgument(f"the request is not a {quoted(self.request_type.DESCRIPTOR.full_name)} message") from None


def methods_from_servicers(descriptor: ServiceDescriptor, *servicers: object) -> list[RpcMethod]:
    """Every RPC of a service, served by the method of the same name of the first servicer that has it; others answer UNIMPLEMENTED."""
    return [_method(descriptor, method, servicers) for method in descriptor.methods]


def method_table(*groups: Iterable[RpcMethod]) -> Mapping[str, RpcMethod]:
    """By path.

    Raises:
        ValueError: two RPCs share a path.
    """
    table: dict[str, RpcMethod] = {}
    for group in groups:
        for method in group:
            if method.path in table:
                raise ValueError(f"two RPCs at {method.path}")
            table[method.path] = method
    return table


def _method(service: ServiceDescriptor, method: MethodDescriptor, servicers: Sequence[object]) -> RpcMethod:
    path = f"/{service.full_name}/{method.name}"
    handlers = (getattr(servicer, method.name) for servicer in servicers if hasattr(servicer, method.name))
    return RpcMethod(
        path=path,
        request_type=GetMessageClass(method.input_type),
        response_type=GetMessageClass(method.output_type),
        streams_requests=method.client_streaming,
        streams_responses=method.server_streaming,
        handler=next(handlers, None) or _unsupported(path, streams_responses=method.server_streaming),
    )


def _unsupported(path: str, *, streams_responses: bool) -> UnaryHandler | StreamHandler:
    async def unary(_request: object, _context: RpcContext) -> object:
        raise Unsupported(f"{path} is not offered by this server")

    async def stream(_request: object, _context: RpcContext) -> AsyncGenerator[object, None]:
        raise Unsupported(f"{path} is not offered by this server")
        yield

    return stream if streams_responses else unary
