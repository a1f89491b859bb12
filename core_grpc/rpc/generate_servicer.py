"""The generate extension of ``tensorgate.rest.v1.Rest``: HTTP bodies in, the data plane, JSON or server-sent events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing

from google.api.httpbody_pb2 import HttpBody

from core_grpc.data_plane import DataPlane
from core_grpc.errors import FailedPrecondition, InvalidArgument, quoted
from core_grpc.rpc.content_types import EVENTS_TYPE, is_json
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.http_body import http_body
from core_grpc.rpc.interceptors import failure_of
from core_grpc.rpc.off_loop import INLINE_JSON_BYTES, off_loop
from core_grpc.rpc.rest_answers import RestBody
from core_grpc.rpc.rest_generate import decode_generate_body, encode_generate_response, error_event, event
from core_grpc.rpc.sequence_pinning import refuse_spread_sequence
from core_grpc.settings import LimitsSettings
from core_grpc.types import InferRequest, InferResponse
from protos.tensorgate.rest.v1 import rest_pb2 as pb

_PATH = "/tensorgate.rest.v1.Rest/GenerateStream"


class GenerateServicer:
    """``/v2/models/{model}/generate`` and ``/generate_stream``."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings, pool: Executor) -> None:
        """``pool`` reads and writes large bodies."""
        self._data_plane = data_plane
        self._limits = limits
        self._pool = pool

    async def Generate(self, request: pb.RestBodyRequest, context: RpcContext) -> HttpBody:
        """One JSON object in, one out; of a decoupled model, the one answer that it must give."""
        decoded = await self._decoded(request, context)
        refuse_spread_sequence(decoded, context)
        if not self._data_plane.is_decoupled(request.model, request.version):
            return http_body(await self._encoded(await self._data_plane.infer(decoded)))
        last: InferResponse | None = None
        async with aclosing(self._data_plane.stream(decoded)) as responses:
            async for response in responses:
                if last is not None:
                    raise FailedPrecondition("generate expects the model to give exactly 1 answer, it gave more: use generate_stream")
                last = response
        if last is None:
            raise FailedPrecondition("generate expects the model to give exactly 1 answer, it gave none: use generate_stream")
        return http_body(await self._encoded(last))

    async def GenerateStream(self, request: pb.RestBodyRequest, context: RpcContext) -> AsyncGenerator[HttpBody, None]:
        """One JSON object in, an event for each answer; what fails before the first one fails with its status, later as an event."""
        decoded = await self._decoded(request, context)
        has_begun = False
        try:
            async with aclosing(self._data_plane.stream(decoded)) as responses:
                async for response in responses:
                    has_begun = True
                    yield HttpBody(content_type=EVENTS_TYPE, data=event((await self._encoded(response)).data))
        except Exception as error:
            if not has_begun:
                raise
            yield HttpBody(content_type=EVENTS_TYPE, data=error_event(failure_of(_PATH, error, context).message))
            return
        if not has_begun:  # A stream without a message would have no content type.
            yield HttpBody(content_type=EVENTS_TYPE)

    async def _decoded(self, request: pb.RestBodyRequest, context: RpcContext) -> InferRequest:
        content_type = request.body.content_type
        if not is_json(content_type):
            raise InvalidArgument(f"content type {quoted(content_type, 80)}: wanted application/json")
        if context.metadata.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise InvalidArgument("content-encoding: generate takes bodies as they are (identity)")
        spec = await self._data_plane.spec(request.model, request.version, context.deadline)
        body = request.body.data
        return await off_loop(
            lambda: decode_generate_body(spec, body, self._limits, context.deadline), self._pool, is_large=len(body) > INLINE_JSON_BYTES
        )

    async def _encoded(self, response: InferResponse) -> RestBody:
        size_bytes = sum(tensor.array.nbytes for tensor in response.outputs.values())
        return await off_loop(lambda: encode_generate_response(response), self._pool, is_large=size_bytes > INLINE_JSON_BYTES)
