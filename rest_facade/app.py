"""The facade as an ASGI application: its surface and its order on one screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware

from rest_facade.core_client import CoreClient
from rest_facade.errors import ERROR_HANDLERS
from rest_facade.files import SiteFiles, demo_site
from rest_facade.routes import docs, health, predict
from rest_facade.security import DOCS_HEADERS, DefaultHeaders, LoopbackGuard
from rest_facade.settings import FacadeSettings


def create_app(settings: FacadeSettings, core: CoreClient | None = None) -> FastAPI:
    """The application. Without ``core`` it opens a channel to ``settings.core_address`` when it starts and closes it when it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.core = core or CoreClient(settings.core_address, settings.max_body_bytes)
        yield
        if core is None:
            await app.state.core.close()

    app = FastAPI(
        title="Tensorgate",
        # The description and its pages are our own (openapi/, routes/docs.py): they also cover what the edge serves.
        openapi_url=None,
        # A redirect would be built from the Host header.
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[Middleware(DefaultHeaders), Middleware(LoopbackGuard, settings=settings)],
        exception_handlers=dict(ERROR_HANDLERS),
    )
    app.state.settings = settings
    app.include_router(health.router)
    app.include_router(predict.router)
    app.include_router(docs.router)
    app.mount("/static", SiteFiles(docs.STATIC, DOCS_HEADERS))
    # Not a mount at "/": that would match every path, and a wrong method on a route would answer 404.
    app.router.default = demo_site(settings.demo_directory)
    return app
