"""The streams of ``tensorgate.v1``: PredictMany, Watch and Converse.

A request of a stream that fails is an ``Outcome`` with its google.rpc.Code, and the stream goes on. Only Watch, which has one request,
fails as an RPC when that fails before its first answer, so that REST callers get the status as theirs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeAlias

from core_grpc.data_plane import DataPlane
from core_grpc.errors import GatewayError, LimitExceeded, StatusCode
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.interceptors import RpcFailure, failure_of
from core_grpc.rpc.interleave import interleaved
from core_grpc.rpc.tensorgate_codec import encode_predict_response
from core_grpc.settings import LimitsSettings
from core_grpc.types import CallerStream, InferRequest, ModelSpec
from protos.tensorgate.v1 import inference_pb2 as pb

Decode: TypeAlias = Callable[[pb.PredictRequest, RpcContext], Awaitable[tuple[InferRequest, ModelSpec]]]

_SERVICE = "/tensorgate.v1.InferenceService/"


class TensorgateStreams:
    """The three RPCs over one data plane."""

    def __init__(self, data_plane: DataPlane, limits: LimitsSettings, decode: Decode) -> None:
        self._data_plane = data_plane
        self._limits = limits
        self._decode = decode

    async def predict_many(self, requests: AsyncIterator[pb.PredictManyRequest], context: RpcContext) -> pb.PredictManyResponse:
        """All outcomes in the order of the requests; of a decoupled model each request's last answer counts, as it has only one place.

        Raises:
            ServerDraining: the server is going away.
            LimitExceeded: the answers together are larger than a message may be.
        """

        stream = CallerStream()

        async def respond(message: pb.PredictManyRequest) -> AsyncGenerator[pb.Outcome, None]:
            last = pb.Outcome(id=message.request.id)
            async with aclosing(self._outcomes(message.request, context, "PredictMany", stream)) as outcomes:
                async for outcome in outcomes:
                    last = outcome
            yield last

        def is_ordered(_message: pb.PredictManyRequest) -> bool:
            return True

        size_of = pb.PredictManyRequest.ByteSize
        answer, nbytes = pb.PredictManyResponse(), 0
        async with aclosing(interleaved(self._data_plane, self._limits, requests, respond, is_ordered, size_of, stream)) as outcomes:
            async for outcome in outcomes:
                nbytes += outcome.ByteSize()
                if nbytes > self._limits.max_message_bytes:
                    raise LimitExceeded(
                        f"the answers have more than {nbytes} bytes after {len(answer.outcomes)} requests: the limit is "
                        f"{self._limits.max_message_bytes} (max_message_bytes); ask with Converse"
                    )
                answer.outcomes.append(outcome)
                answer.failed += outcome.code != StatusCode.OK
        answer.succeeded = len(answer.outcomes) - answer.failed
        return answer

    async def watch(self, message: pb.WatchRequest, context: RpcContext) -> AsyncGenerator[pb.WatchResponse, None]:
        """The answers to one request as they are made, each sent at once.

        Raises:
            whatever the request fails with before its first answer; later failures are the last outcome.
        """
        has_answered = False
        decoupled = self._is_decoupled(message.request)
        try:
            async with aclosing(self._responses(message.request, context)) as responses:
                async for response in responses:
                    has_answered = True
                    yield pb.WatchResponse(outcome=pb.Outcome(id=response.id, response=response), final=not decoupled)
        except Exception as error:
            if not has_answered:
                raise
            failure = failure_of(f"{_SERVICE}Watch", error, context)
            yield pb.WatchResponse(outcome=_failed(message.request, failure), final=True)
            return
        if decoupled:
            yield pb.WatchResponse(outcome=pb.Outcome(id=message.request.id), final=True)

    def converse(self, requests: AsyncIterator[pb.ConverseRequest], context: RpcContext) -> AsyncGenerator[pb.ConverseResponse, None]:
        """Answers as they are made; those of models that answer once in the order of their requests.

        Raises:
            ServerDraining: the server is going away; what was read is answered.
        """

        stream = CallerStream()

        async def respond(message: pb.ConverseRequest) -> AsyncGenerator[pb.ConverseResponse, None]:
            decoupled, has_failed = self._is_decoupled(message.request), False
            async with aclosing(self._outcomes(message.request, context, "Converse", stream)) as outcomes:
                async for outcome in outcomes:
                    has_failed = outcome.code != StatusCode.OK
                    yield pb.ConverseResponse(outcome=outcome, final=has_failed or not decoupled)
            if decoupled and not has_failed:
                yield pb.ConverseResponse(outcome=pb.Outcome(id=message.request.id), final=True)

        def is_ordered(message: pb.ConverseRequest) -> bool:
            return not self._is_decoupled(message.request)

        return interleaved(self._data_plane, self._limits, requests, respond, is_ordered, pb.ConverseRequest.ByteSize, stream)

    async def _outcomes(
        self, request: pb.PredictRequest, context: RpcContext, rpc: str, stream: CallerStream
    ) -> AsyncGenerator[pb.Outcome, None]:
        """The answers; a failure is the last of them."""
        try:
            async with aclosing(self._responses(request, context, stream)) as responses:
                async for response in responses:
                    yield pb.Outcome(id=response.id, response=response)
        except Exception as error:  # noqa: BLE001 (what is not ours becomes "internal error", and is logged)
            yield _failed(request, failure_of(_SERVICE + rpc, error, context))

    async def _responses(
        self, request: pb.PredictRequest, context: RpcContext, stream: CallerStream | None = None
    ) -> AsyncGenerator[pb.PredictResponse, None]:
        decoded, spec = await self._decode(request, context)
        decoded = decoded.on(stream)
        if not spec.decoupled:
            yield encode_predict_response(await self._data_plane.infer(decoded), request, spec)
            return
        async with aclosing(self._data_plane.stream(decoded)) as responses:
            async for response in responses:
                yield encode_predict_response(response, request, spec)

    def _is_decoupled(self, request: pb.PredictRequest) -> bool:
        if not request.model:
            with suppress(GatewayError):  # Decoding says what is wrong.
                request.model = self._data_plane.default_model()
        return self._data_plane.is_decoupled(request.model, request.version)


def _failed(request: pb.PredictRequest, failure: RpcFailure) -> pb.Outcome:
    return pb.Outcome(id=request.id, code=int(failure.code), message=failure.message)
