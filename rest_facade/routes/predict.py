"""``POST /predict``: one inference with plain nested numbers, forwarded to the core with its caller's identity."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from protos.tensorgate.v1.inference_pb2 import TENSOR_ENCODING_VALUES, PredictRequest
from rest_facade.convert import answer_from_response, tensor_from_body
from rest_facade.core_client import CoreClient, Metadata
from rest_facade.deps import CoreDep, MetadataDep, PredictBodyDep, SettingsDep
from rest_facade.errors import FacadeError
from rest_facade.schemas import PredictBody

router = APIRouter()

Answer = TypeVar("Answer")


@router.post("/predict")
async def predict(request: Request, body: PredictBodyDep, metadata: MetadataDep, core: CoreDep, settings: SettingsDep) -> Response:
    """Runs a model with one input. NaN and infinities in the answer are the bare tokens that ``/v2`` writes too."""
    answer = await _while_connected(request, _predict(body, metadata, core, settings.request_timeout_s))
    return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")


async def _predict(body: PredictBody, metadata: Metadata, core: CoreClient, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    model = await core.model(body.model, body.version, metadata, timeout_s)
    request = PredictRequest(
        model=model.name,
        version=body.version,
        inputs=[tensor_from_body(body, model)],
        outputs=[body.output] if body.output else [],
        encoding=TENSOR_ENCODING_VALUES,
    )
    return answer_from_response(await core.predict(request, metadata, deadline - time.monotonic()))


async def _while_connected(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The outcome of ``work``, which is cancelled when the caller leaves: the core then drops it from its queue."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise FacadeError(1, "the caller left")
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
