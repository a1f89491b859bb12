"""Headers that every answer carries, and the check of who a loopback listener is talking to."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rest_facade.settings import FacadeSettings

_COMMON: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NO_EMBEDDING = "base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"

API_HEADERS: Mapping[str, str] = {
    **_COMMON,
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
"""For JSON."""

PAGE_HEADERS: Mapping[str, str] = {
    **_COMMON,
    # blob: and data: are pictures that the page makes itself, such as the preview of a chosen photo.
    "content-security-policy": f"default-src 'self'; img-src 'self' data: blob:; {_NO_EMBEDDING}",
}
"""For the demo."""

DOCS_HEADERS: Mapping[str, str] = {
    **_COMMON,
    # Swagger UI and Redoc write style attributes and elements; their scripts need nothing inline.
    "content-security-policy": f"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; {_NO_EMBEDDING}",
}
"""For the documentation pages."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class DefaultHeaders:
    """ASGI middleware: an answer that says nothing of its own gets the headers for JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in API_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class LoopbackGuard:
    """ASGI middleware: a listener on a loopback address answers only those who called it by a loopback name.

    Otherwise any web page could reach it through the browser of somebody at this machine, by a name of its own that resolves to 127.0.0.1
    (DNS rebinding). On a Unix socket or another address nothing is checked: there the edge stands in front.
    """

    def __init__(self, app: ASGIApp, settings: FacadeSettings) -> None:
        self._app = app
        self._active = not settings.unix_socket and settings.host in _LOOPBACK
        self._hosts = (_LOOPBACK | {_host_of(settings.public_url)}) - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not self._active or self._is_local(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = {"code": 7, "message": "Host and Origin: wanted a loopback name or that of TENSORGATE_FACADE_PUBLIC_URL", "details": []}
        await JSONResponse(body, 403, API_HEADERS)(scope, receive, send)

    def _is_local(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return _host_of(f"//{headers.get('host', '')}") in self._hosts and (origin is None or _host_of(origin) in self._hosts)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
