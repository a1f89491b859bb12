"""``ModelStreamInfer``: any number of requests for any models on one stream, and their answers.

As Triton does it (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_parameters.md and the decoupled
models' documentation): a request that fails is answered with ``error_message`` and the stream goes on, unless the caller opened it with
the metadata ``triton_grpc_error: true``, when the first failure ends the RPC with its status. Every answer says in the parameter
``triton_final_response`` whether it is the last of its request. A decoupled model's last answer is only known to be the last once the
model has ended: callers that set ``triton_enable_empty_final_response`` get an answer without outputs then, others nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from core_grpc.data_plane import DataPlane
from core_grpc.rpc.codec import decode_infer_request, encode_infer_response
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.interceptors import failure_of
from core_grpc.rpc.interleave import interleaved
from core_grpc.rpc.request_parameters import EMPTY_FINAL
from core_grpc.settings import LimitsSettings
from core_grpc.shared_memory.regions import SharedMemory, release_places
from core_grpc.types import CallerStream, InferRequest
from protos.inference import grpc_service_pb2 as pb

FINAL = "triton_final_response"
STATUS_ERRORS = "triton_grpc_error"
"""Metadata by which a caller asks for failures as the RPC's status."""

_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


def model_stream(
    data_plane: DataPlane,
    limits: LimitsSettings,
    memory: SharedMemory,
    requests: AsyncIterator[pb.ModelInferRequest],
    context: RpcContext,
) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
    """The answers of one stream.

    Raises:
        ServerDraining: the server is going away; what was read is answered.
        RpcFailure: a request failed and the caller wants that as the RPC's status.
    """
    stream = _ModelStream(data_plane, limits.max_tensor_dimensions, memory, context)
    return interleaved(data_plane, limits, requests, stream.respond, stream.is_ordered, pb.ModelInferRequest.ByteSize, stream.scope)


class _ModelStream:
    def __init__(self, data_plane: DataPlane, max_dimensions: int, memory: SharedMemory, context: RpcContext) -> None:
        self._data_plane = data_plane
        self._max_dimensions = max_dimensions
        self._memory = memory
        self._context = context
        self.scope = CallerStream()
        self._has_status_errors = context.metadata.get(STATUS_ERRORS, "").lower() == "true"

    def is_ordered(self, request: pb.ModelInferRequest) -> bool:
        return not self._data_plane.is_decoupled(request.model_name, request.model_version)

    async def respond(self, request: pb.ModelInferRequest) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        decoded: InferRequest | None = None
        try:
            decoded = decode_infer_request(request, self._context.deadline, self._max_dimensions, self._memory).on(self.scope)
            if self.is_ordered(request):
                response = await self._data_plane.infer(decoded)
                encoded = encode_infer_response(response, decoded.outputs)
                yield pb.ModelStreamInferResponse(infer_response=_final(encoded, is_final=True))
                return
            async with aclosing(self._decoupled(decoded)) as answers:
                async for answer in answers:
                    yield answer
        except Exception as error:  # (what is not ours becomes "internal error", and is logged)
            failure = failure_of(_PATH, error, self._context)
            if self._has_status_errors:
                raise failure from error
            failed = pb.ModelInferResponse(model_name=request.model_name, model_version=request.model_version, id=request.id)
            yield pb.ModelStreamInferResponse(error_message=failure.message, infer_response=_final(failed, is_final=True))
        finally:
            if decoded:
                release_places(decoded.outputs)

    async def _decoupled(self, request: InferRequest) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        async with aclosing(self._data_plane.stream(request)) as responses:
            async for response in responses:
                yield pb.ModelStreamInferResponse(infer_response=_final(encode_infer_response(response, request.outputs), is_final=False))
        if request.parameters.get(EMPTY_FINAL):
            spec = await self._data_plane.spec(request.model_name, request.model_version)
            empty = pb.ModelInferResponse(model_name=spec.name, model_version=spec.version, id=request.id)
            yield pb.ModelStreamInferResponse(infer_response=_final(empty, is_final=True))


def _final(response: pb.ModelInferResponse, *, is_final: bool) -> pb.ModelInferResponse:
    response.parameters[FINAL].bool_param = is_final
    return response
