"""``tensorgate.rest.v1.Rest``: HTTP bodies in, the data plane, HTTP bodies out.

What a body means is decided by its content type: none, ``application/json``, ``application/octet-stream`` and
``application/x-www-form-urlencoded`` (what ``curl -d`` says) are JSON, with raw tensors behind it where Inference-Header-Content-Length
is set; stock clients send JSON under any of these. ``image/*``, ``audio/*`` and ``multipart/form-data`` are uploads. Nothing else is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from google.api.httpbody_pb2 import HttpBody

from core_grpc.data_plane import DataPlane
from core_grpc.errors import InvalidArgument, ModelNotReady, Unsupported, quoted
from core_grpc.rpc.compression import INLINE_BYTES, INLINE_INFLATED_BYTES, SMALLEST_BYTES, compressed, inflated
from core_grpc.rpc.content_types import BINARY_TYPE, JSON_TYPE, essence, is_json, is_upload
from core_grpc.rpc.context import RpcContext
from core_grpc.rpc.http_body import http_body, http_json
from core_grpc.rpc.off_loop import INLINE_JSON_BYTES, off_loop
from core_grpc.rpc.rest_answers import RestBody, binary_outputs, encode_infer_response
from core_grpc.rpc.rest_binary import LENGTH_HEADER, is_length
from core_grpc.rpc.rest_codec import decode_infer_body
from core_grpc.rpc.rest_encoding import OFFERED, answer_encoding, request_encoding
from core_grpc.rpc.rest_predict import PredictCall, decode_predict_body, encode_predict_response
from core_grpc.rpc.rest_upload import decode_upload, query_options, takes_uploads
from core_grpc.rpc.sequence_pinning import refuse_spread_sequence
from core_grpc.rpc.shared_memory_access import memory_for
from core_grpc.settings import NodeSettings
from core_grpc.shared_memory.regions import SharedMemory, release_places
from core_grpc.types import Datatype, InferRequest, InferResponse, ModelSpec, TensorSpec
from protos.tensorgate.rest.v1 import rest_pb2 as pb

_ORIGINAL_PATH = "x-envoy-original-path"
"""The URL's path with its query, as the edge's transcoder hands it on."""

Result = TypeVar("Result")


class RestServicer:
    """The REST doors that speak their own JSON. RPCs without a method here answer UNIMPLEMENTED."""

    def __init__(self, data_plane: DataPlane, settings: NodeSettings, pool: Executor, memory: SharedMemory) -> None:
        self._data_plane = data_plane
        self._limits = settings.limits
        self._pool = pool
        self._memory = memory

    async def ServerLive(self, _request: pb.RestRequest, _context: RpcContext) -> HttpBody:
        """200 when the server is alive, else 503."""
        if not self._data_plane.live():
            raise ModelNotReady("the server is stopping")
        return http_json({"live": True})

    async def ServerReady(self, _request: pb.RestRequest, _context: RpcContext) -> HttpBody:
        """200 when the server is ready, else 503."""
        if not self._data_plane.ready():
            raise ModelNotReady("the server is not ready")
        return http_json({"ready": True})

    async def ServerMetadata(self, _request: pb.RestRequest, _context: RpcContext) -> HttpBody:
        """Name, version and extensions."""
        metadata = self._data_plane.server_metadata()
        return http_json({"name": metadata.name, "version": metadata.version, "extensions": metadata.extensions})

    async def ModelReady(self, request: pb.RestRequest, _context: RpcContext) -> HttpBody:
        """200 when the model is ready, 404 when it is unknown, else 503."""
        if not self._data_plane.model_ready(request.model, request.version):
            raise ModelNotReady(f"model {quoted(request.model)} is not ready")
        return http_json({"name": request.model, "ready": True})

    async def ModelMetadata(self, request: pb.RestRequest, _context: RpcContext) -> HttpBody:
        """Inputs, outputs and versions of a model."""
        metadata = await self._data_plane.model_metadata(request.model, request.version)
        answer = {
            "name": metadata.name,
            "versions": metadata.versions,
            "platform": metadata.platform,
            "inputs": [_tensor_metadata(item) for item in metadata.inputs],
            "outputs": [_tensor_metadata(item) for item in metadata.outputs],
        }
        return http_json(answer)

    async def ModelInfer(self, request: pb.RestBodyRequest, context: RpcContext) -> HttpBody:
        """Inference: JSON, the binary tensor extension, one raw tensor, or an upload."""
        body, spec = await self._opened(request, context)
        content_type = request.body.content_type
        memory = memory_for(self._memory, context)

        def decode() -> InferRequest:
            if is_upload(content_type):
                return decode_upload(spec, content_type, body, {}, context.deadline).request
            return decode_infer_body(spec, body, context.metadata.get(LENGTH_HEADER), self._limits, context.deadline, memory=memory)

        decoded = await self._off_loop(_parsed_bytes(spec, body, context), decode)
        refuse_spread_sequence(decoded, context)
        try:
            response = await self._data_plane.infer(decoded)
            in_json = response.outputs.keys() - binary_outputs(response, decoded)
            encoded = await self._off_loop(_output_bytes(response, in_json), lambda: encode_infer_response(response, decoded))
        finally:
            release_places(decoded.outputs)
        if encoded.json_bytes is not None:
            context.set_header(LENGTH_HEADER, str(encoded.json_bytes))
        return http_body(await self._compressed(encoded, context))

    async def Predict(self, request: pb.RestBodyRequest, context: RpcContext) -> HttpBody:
        """Inference in the model's own words: `{"instances": …}`, `{"inputs": …}`, multipart/form-data, or a bare image."""
        body, spec = await self._opened(request, context)
        content_type = request.body.content_type

        def decode() -> PredictCall:
            if is_upload(content_type) or (takes_uploads(spec) and _is_bare_image(content_type, body)):
                query = query_options(context.metadata.get(_ORIGINAL_PATH, ""))
                return decode_upload(spec, content_type, body, query, context.deadline)
            return decode_predict_body(spec, body, self._limits, context.deadline)

        call = await self._off_loop(len(body), decode)
        refuse_spread_sequence(call.request, context)
        response = await self._data_plane.infer(call.request)
        size_bytes = _output_bytes(response, response.outputs)
        encoded = await self._off_loop(size_bytes, lambda: encode_predict_response(spec, response, call))
        return http_body(await self._compressed(encoded, context))

    async def _opened(self, request: pb.RestBodyRequest, context: RpcContext) -> tuple[bytes, ModelSpec]:
        """The body, inflated, and the model it is for, after the headers were found to be ones that we can read."""
        encoding = _request_encoding(context)
        _check_content_type(request.body.content_type)
        body, spec = request.body.data, await self._data_plane.spec(request.model, request.version, context.deadline)
        if encoding:
            limit = self._limits.max_message_bytes
            body = await self._off_loop(len(body), lambda: bytes(inflated(body, encoding, limit)), INLINE_INFLATED_BYTES)
        return body, spec

    async def _compressed(self, body: RestBody, context: RpcContext) -> RestBody:
        """The answer, compressed if its caller accepts that, it is not small, and becomes smaller."""
        if len(body.data) < SMALLEST_BYTES:
            return body
        context.set_header("vary", "accept-encoding")
        encoding = answer_encoding(context.metadata.get("accept-encoding", ""))
        if not encoding:
            return body
        data = await self._off_loop(len(body.data), lambda: compressed(body.data, encoding), INLINE_BYTES)
        if len(data) >= len(body.data):
            return body
        context.set_header("content-encoding", encoding)
        return replace(body, data=data)

    async def _off_loop(self, size_bytes: int, work: Callable[[], Result], inline_bytes: int = INLINE_JSON_BYTES) -> Result:
        return await off_loop(work, self._pool, is_large=size_bytes > inline_bytes)


def _request_encoding(context: RpcContext) -> str:
    try:
        return request_encoding(context.metadata.get("content-encoding", ""))
    except Unsupported:
        context.set_header("accept-encoding", OFFERED)
        raise


def _tensor_metadata(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": spec.shape}


def _is_bare_image(content_type: str, body: bytes) -> bool:
    """Whether a body without an image's content type is one all the same: ``curl --data-binary @photo.jpg`` says it is a form."""
    if essence(content_type) == BINARY_TYPE:
        return not body.lstrip().startswith(b"{")
    return essence(content_type) != JSON_TYPE and body[:1] >= b"\x80"


def _check_content_type(content_type: str) -> None:
    if not is_json(content_type) and not is_upload(content_type):
        raise InvalidArgument(
            f"content type {quoted(content_type, 80)}: wanted application/json, application/octet-stream, image/*, audio/* or "
            "multipart/form-data"
        )


def _parsed_bytes(spec: ModelSpec, body: bytes, context: RpcContext) -> int:
    """How much of the body is looked at byte by byte: of raw tensors only the elements of BYTES, the others are taken as they are."""
    header = context.metadata.get(LENGTH_HEADER, "")
    if is_length(header) and all(item.datatype is not Datatype.BYTES for item in spec.inputs):
        return min(int(header), len(body))
    return len(body)


def _output_bytes(response: InferResponse, names: Iterable[str]) -> int:
    return sum(response.outputs[name].array.nbytes for name in names)
