"""The one channel to the core. gRPC is used here and, for its failures, in errors.py; nowhere else in the facade."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.tensorgate.v1 import inference_pb2, inference_pb2_grpc

Metadata = Sequence[tuple[str, str]]

_RECONNECT_MS = (100, 1000)
"""First and longest pause before the channel tries to connect again: a node that was restarted is found within a second."""


class CoreClient:
    """Calls to the core. Failures come out as ``grpc.aio.AioRpcError``.

    Made on the event loop that uses it. The channel connects by itself, also again after the core was away.
    """

    def __init__(self, address: str, max_message_bytes: int) -> None:
        first_ms, longest_ms = _RECONNECT_MS
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.initial_reconnect_backoff_ms", first_ms),
            ("grpc.min_reconnect_backoff_ms", longest_ms),
            ("grpc.max_reconnect_backoff_ms", longest_ms),
            # The core is ours: a proxy for the way to the internet must not see it.
            ("grpc.enable_http_proxy", 0),
        ]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def close(self) -> None:
        """Cancels what is running and closes the channel."""
        await self._channel.close()

    async def model(self, name: str, version: str, metadata: Metadata, timeout_s: float) -> inference_pb2.Model:
        """What a model takes and gives. Empty ``version``: the newest that is ready. Empty ``name``: the core's default model."""
        request = inference_pb2.GetModelRequest(model=name, version=version)
        response: inference_pb2.GetModelResponse = await self._inference.GetModel(request, metadata=metadata, timeout=timeout_s)
        return response.model

    async def predict(self, request: inference_pb2.PredictRequest, metadata: Metadata, timeout_s: float) -> inference_pb2.PredictResponse:
        """One inference."""
        response: inference_pb2.PredictResponse = await self._inference.Predict(request, metadata=metadata, timeout=timeout_s)
        return response

    async def serving_status(self, timeout_s: float) -> str:
        """The core's own word for its health (``SERVING``, ``NOT_SERVING``, …), or ``UNREACHABLE``. Takes ``timeout_s`` at the most."""
        try:
            response = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return "UNREACHABLE"
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
