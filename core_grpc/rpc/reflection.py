"""gRPC server reflection, v1 and v1alpha, by grpcio-reflection.

The package speaks v1alpha only; v1 is the same messages under another package name, so its descriptor is made from v1alpha's. Callers
who come through the edge are refused: reflection is for the inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer as GrpcioReflectionServicer

from core_grpc.errors import PermissionDenied
from core_grpc.rpc.context import RpcContext


class ReflectionServicer:
    """``ServerReflectionInfo`` of both versions: on the wire they are the same."""

    def __init__(self, services: Sequence[str]) -> None:
        self._reflection = GrpcioReflectionServicer(services)

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: RpcContext) -> AsyncIterator[Any]:
        """Answers each question of the stream."""
        if context.from_edge:
            raise PermissionDenied("reflection is not offered to callers from outside")
        async for response in self._reflection.ServerReflectionInfo(_as_v1alpha(requests), None):
            yield response


async def _as_v1alpha(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The answers quote the question, and a message of another class, even of the same form, may not be put into them."""
    async for request in requests:
        yield reflection_pb2.ServerReflectionRequest.FromString(request.SerializeToString())


def reflection_services() -> tuple[ServiceDescriptor, ServiceDescriptor]:
    """The service descriptors of v1 and v1alpha."""
    alpha: ServiceDescriptor = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    pool = descriptor_pool.Default()
    try:
        return pool.FindServiceByName("grpc.reflection.v1.ServerReflection"), alpha
    except KeyError:
        pool.Add(_v1_file())
    return pool.FindServiceByName("grpc.reflection.v1.ServerReflection"), alpha


def _v1_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    text = reflection_pb2.DESCRIPTOR.serialized_pb
    # Only the package differs; the file's name is the one that github.com/grpc/grpc-proto gives v1.
    file.ParseFromString(text)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = "grpc.reflection.v1"
    for holder in (*file.message_type, *file.service):
        for member in (*getattr(holder, "field", ()), *getattr(holder, "method", ())):
            for attribute in ("type_name", "input_type", "output_type"):
                if value := getattr(member, attribute, ""):
                    setattr(member, attribute, value.replace(".grpc.reflection.v1alpha.", ".grpc.reflection.v1."))
    return file
