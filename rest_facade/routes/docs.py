"""The documentation: Swagger UI, Redoc, and the description that both show. Nothing is fetched from another host."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

from rest_facade.deps import SettingsDep
from rest_facade.openapi import openapi_json
from rest_facade.security import DOCS_HEADERS

STATIC = Path(__file__).resolve().parent.parent / "static"

router = APIRouter()

_page_headers = {**DOCS_HEADERS, "cache-control": "no-cache"}
_openapi_json = lru_cache(maxsize=1)(openapi_json)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def swagger_ui() -> FileResponse:
    """Swagger UI."""
    return FileResponse(STATIC / "docs.html", headers=_page_headers)


@router.api_route("/redoc", methods=["GET", "HEAD"])
async def redoc() -> FileResponse:
    """Redoc."""
    return FileResponse(STATIC / "redoc.html", headers=_page_headers)


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def description(settings: SettingsDep) -> Response:
    """OpenAPI 3.1."""
    return Response(_openapi_json(settings.public_url), media_type="application/json", headers={"cache-control": "no-cache"})
