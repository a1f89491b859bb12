"""Liveness of this process, and readiness of the core behind it: for probes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from rest_facade.deps import CoreDep, SettingsDep

router = APIRouter()


@router.api_route("/health/live", methods=["GET", "HEAD"])
async def live() -> dict[str, Any]:
    """200 as long as this process answers; says nothing of the core."""
    return {"status": "live"}


@router.api_route("/health", methods=["GET", "HEAD"])
async def ready(core: CoreDep, settings: SettingsDep) -> JSONResponse:
    """200 when the core serves, else 503, within the probe's time-out."""
    status = await core.serving_status(settings.probe_timeout_s)
    is_ready = status == "SERVING"
    return JSONResponse({"status": "ready" if is_ready else "not ready", "core": status}, 200 if is_ready else 503)
