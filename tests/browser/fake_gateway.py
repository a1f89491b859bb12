"""A fake server inside the browser's network layer: the built page's files, and scripted gRPC-Web answers.

It is for what a real server does not do on demand (a deadline that passes, a model that is unloaded meanwhile). What a real one
answers is in test_demo_with_server.py.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from google.protobuf.message import Message
from playwright.async_api import Page, Route

from core_grpc.errors import StatusCode
from protos.tensorgate.v1 import inference_pb2 as pb

DIST = Path(__file__).resolve().parents[2] / "web_demo" / "dist"
ORIGIN = "http://gateway.fake"
SERVICE = "/tensorgate.v1.InferenceService/"

TRAILER_FLAG = b"\x80"
OK_TRAILER = b"grpc-status:0\r\n"


@dataclass(frozen=True)
class Failure:
    """A failed call: answered in the headers alone, as Envoy does."""

    code: StatusCode
    message: str


def image_model(name: str = "efficientnet_lite0", version: str = "1", state: int = pb.MODEL_STATE_READY, reason: str = "") -> pb.Model:
    """A model as the demo model describes itself."""
    return pb.Model(
        name=name,
        version=version,
        state=pb.ModelState.Name(state),
        reason=reason,
        platform="onnxruntime_onnx",
        max_batch_size=8,
        inputs=[pb.TensorSpec(name="input", datatype="FP32", shape=[-1, 224, 224, 3], accepts="image")],
        outputs=[pb.TensorSpec(name=output, datatype="FP32", shape=[-1, 1000]) for output in ("logits", "probabilities")],
        description=f"{name}: 1000 everyday things",
        label_count=1000,
    )


def five_classes(_request: pb.PredictRequest) -> pb.PredictResponse:
    """The demo model's answer to the photo of a coffee."""
    top = [("espresso", 967, 0.9496), ("cup", 968, 0.0321), ("eggnog", 969, 0.0061), ("red wine", 966, 0.0012), ("coffee mug", 504, 0.0009)]
    return pb.PredictResponse(
        model="efficientnet_lite0",
        version="1",
        classes=[pb.RowClasses(top=[pb.ClassScore(label=label, index=index, score=score) for label, index, score in top])],
        timing=pb.Timing(preprocess_ms=6.1, queue_ms=0.04, compute_ms=18.7, batch_rows=1),
    )


@dataclass
class FakeGateway:
    """Serves a page. Change the fields while it runs."""

    models: list[pb.Model] | Failure = field(default_factory=lambda: [image_model()])
    predict: Callable[[pb.PredictRequest], pb.PredictResponse | Failure] = five_classes
    is_up: bool = True
    hold: asyncio.Event | None = None
    """While set and not fired, Predict waits for it."""
    requests: list[pb.PredictRequest] = field(default_factory=list)

    async def serve(self, page: Page) -> None:
        """Answers every request of ``page``."""
        await page.route("**/*", self._answer)

    async def _answer(self, route: Route) -> None:
        path = urlsplit(route.request.url).path
        if not self.is_up:
            await route.abort("connectionrefused")
        elif path == SERVICE + "ListModels":
            await _reply(route, self.models if isinstance(self.models, Failure) else pb.ListModelsResponse(models=self.models))
        elif path == SERVICE + "Predict":
            await self._predict(route)
        else:
            await _file(route, path)

    async def _predict(self, route: Route) -> None:
        body = route.request.post_data_buffer or b""
        request = pb.PredictRequest.FromString(body[5:])
        self.requests.append(request)
        answer = self.predict(request)
        if self.hold is not None:
            await self.hold.wait()
        await _reply(route, answer)


async def _reply(route: Route, answer: Message | Failure) -> None:
    headers = {"content-type": "application/grpc-web+proto"}
    if isinstance(answer, Failure):
        await route.fulfill(headers={**headers, "grpc-status": str(int(answer.code)), "grpc-message": quote(answer.message)})
        return
    body = _frame(b"\x00", answer.SerializeToString()) + _frame(TRAILER_FLAG, OK_TRAILER)
    await route.fulfill(headers=headers, body=body)


def _frame(flag: bytes, payload: bytes) -> bytes:
    return flag + len(payload).to_bytes(4, "big") + payload


async def _file(route: Route, path: str) -> None:
    file = DIST / ("index.html" if path == "/" else path.removeprefix("/"))
    if not file.is_file():
        await route.fulfill(status=404)
        return
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    # The strictest policy that somebody may put in front of the page.
    await route.fulfill(body=file.read_bytes(), headers={"content-type": kind, "content-security-policy": "default-src 'self'"})
