"""Files for browsers: the demo at ``/`` and what the documentation pages load."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from rest_facade.security import PAGE_HEADERS

_HASHED_NAME = re.compile(r"-[A-Za-z0-9_-]{8,}\.\w+$")
"""Names in which the build puts a hash of the content: such a file never changes."""

_NO_DEMO = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tensorgate</title>
<h1>Tensorgate</h1>
<p>This server runs without its demo page. Try the <a href="docs">documentation with a form for every call</a>,
<a href="redoc">the same to read</a>, the <a href="v1/models">list of models</a>, or <a href="health">whether it is ready</a>.</p>
</html>
"""


class SiteFiles(StaticFiles):
    """A directory of files, with their types, ETags and caching; never a listing. A folder gives its ``index.html``."""

    def __init__(self, directory: Path, headers: Mapping[str, str]) -> None:
        super().__init__(directory=directory, html=True)
        # Reads the machine's table of types, which would otherwise happen on the event loop; some tables have no JavaScript in them.
        mimetypes.init()
        mimetypes.add_type("text/javascript", ".js")
        self._headers = headers

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file at ``path``.

        Raises:
            HTTPException: 404, 405.
        """
        if scope["method"] not in {"GET", "HEAD"}:
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        try:
            response = await super().get_response(path, scope)
        except (HTTPException, ValueError) as error:  # ValueError: a NUL in the path.
            raise not_found() from error
        if response.status_code == 404:
            raise not_found()
        caching = "public, max-age=31536000, immutable" if _HASHED_NAME.search(path) else "no-cache"
        response.headers.update({**self._headers, "cache-control": caching})
        return response


def not_found() -> HTTPException:
    """What an unknown path answers."""
    return HTTPException(404, "no such page or route; /docs lists them")


async def _plain_page(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands in for a demo that is not there."""
    if scope["path"] != "/":
        raise not_found()
    if scope["method"] not in {"GET", "HEAD"}:
        raise HTTPException(405, headers={"Allow": "GET, HEAD"})
    await HTMLResponse(_NO_DEMO, headers={**PAGE_HEADERS, "cache-control": "no-cache"})(scope, receive, send)


def demo_site(directory: Path) -> ASGIApp:
    """What serves every path that no route takes."""
    return SiteFiles(directory, PAGE_HEADERS) if (directory / "index.html").is_file() else _plain_page
