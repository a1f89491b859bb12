"""What browsers load: documentation, the demo, and the headers around them."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path

import httpx
import pytest

from rest_facade.routes.docs import STATIC
from tests.unit.rest_facade.conftest import Connect, error_of

EXTERNAL = re.compile(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    directory = tmp_path / "demo"
    (directory / "assets").mkdir(parents=True)
    (directory / "index.html").write_text("<!doctype html><title>demo</title>")
    (directory / "assets" / "index-BxY12_ab.js").write_text("export {}")
    (directory / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "secret.txt").write_text("secret")
    (directory / "link.txt").symlink_to(tmp_path / "secret.txt")
    return directory


async def test_every_file_that_a_page_names_is_here_and_none_is_elsewhere(facade: httpx.AsyncClient) -> None:
    for page in ("/docs", "/redoc"):
        response = await facade.get(page)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert not EXTERNAL.search(response.text)
        named = re.findall(r'(?:src|href)="([^"]+)"', response.text)
        assert len(named) >= 4
        for address in named:
            assert (await facade.get(f"/{address}")).status_code == 200, address


async def test_documentation_may_load_from_this_host_only(facade: httpx.AsyncClient) -> None:
    policy = (await facade.get("/docs")).headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;")
    assert "http" not in policy


async def test_shipped_files_are_those_written_down() -> None:
    lines = (STATIC / "SHA256SUMS").read_text().splitlines()
    written = {name: digest for digest, name in (line.split() for line in lines)}
    shipped = {str(path.relative_to(STATIC)) for folder in ("swagger-ui", "redoc") for path in (STATIC / folder).iterdir()}
    assert set(written) == shipped
    for name, digest in written.items():
        data = (STATIC / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest, name
        assert b"cdn.redoc.ly" not in data


@pytest.mark.parametrize("path", ["/", "/index.html"])
async def test_the_demo_is_served_and_asked_for_again_each_time(connect: Connect, demo: Path, path: str) -> None:
    facade = await connect(demo_directory=demo)
    response = await facade.get(path)
    assert (response.status_code, response.text) == (200, "<!doctype html><title>demo</title>")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["content-security-policy"].startswith("default-src 'self'; img-src 'self' data: blob:;")
    again = await facade.get(path, headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_files_with_a_hash_in_their_name_are_kept(connect: Connect, demo: Path) -> None:
    facade = await connect(demo_directory=demo)
    response = await facade.get("/assets/index-BxY12_ab.js")
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["content-type"].startswith("text/javascript")
    photo = await facade.get("/photo.jpg")
    assert (photo.headers["content-type"], photo.headers["cache-control"]) == ("image/jpeg", "no-cache")
    assert (await facade.head("/photo.jpg")).headers["content-length"] == "3"


NOWHERE = [
    "/nothing",
    "/assets",
    "/assets/",
    "/../secret.txt",
    "/%2e%2e/secret.txt",
    "/..%2fsecret.txt",
    "/link.txt",
    "/a%00b",
    "/docs/",
    "/" + "x" * 300,
]


@pytest.mark.parametrize("path", NOWHERE)
async def test_no_listing_and_nothing_outside(connect: Connect, demo: Path, path: str) -> None:
    facade = await connect(demo_directory=demo)
    assert error_of(await facade.get(path)) == (404, 5, "no such page or route; /docs lists them")


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_wrong_method_is_named(connect: Connect, demo: Path, is_there: bool) -> None:
    facade = await connect(demo_directory=demo if is_there else demo / "none")
    for path, allowed in (("/", "GET, HEAD"), ("/predict", "POST"), ("/static/docs.js", "GET, HEAD")):
        response = await facade.put(path)
        assert error_of(response) == (405, 12, f"method not allowed; wanted {allowed}")
        assert response.headers["allow"] == allowed


async def test_without_a_demo_a_page_says_so(facade: httpx.AsyncClient) -> None:
    response = await facade.get("/")
    assert response.status_code == 200
    assert "runs without its demo page" in response.text
    for address in re.findall(r'href="([^"]+)"', response.text):
        if not address.startswith("v1/"):
            assert (await facade.get(f"/{address}")).status_code == 200
    assert error_of(await facade.get("/nothing"))[0] == 404


async def test_every_answer_has_the_headers_that_protect(facade: httpx.AsyncClient) -> None:
    for response in await asyncio.gather(*map(facade.get, ("/", "/docs", "/health", "/nothing", "/static/docs.js", "/openapi.json"))):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["content-security-policy"]
        assert "server" not in response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": ""},
        {"host": "localhost", "origin": "https://evil.example"},
        {"host": "localhost", "origin": "null"},
    ],
    ids=str,
)
async def test_a_loopback_listener_answers_loopback_names_only(facade: httpx.AsyncClient, headers: dict[str, str]) -> None:
    status, code, message = error_of(await facade.get("/health", headers=headers))
    assert (status, code) == (403, 7)
    assert "evil" not in message


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST", "gate.example"])
async def test_its_own_names_are_answered(connect: Connect, host: str) -> None:
    facade = await connect(public_url="https://gate.example/tensors")
    assert (await facade.get("/health/live", headers={"host": host, "origin": f"http://{host}"})).status_code == 200


async def test_behind_the_edge_any_name_is_answered(connect: Connect) -> None:
    for settings in ({"unix_socket": "/run/facade.sock"}, {"host": "0.0.0.0"}):
        facade = await connect(**settings)
        assert (await facade.get("/health/live", headers={"host": "gate.example"})).status_code == 200


async def test_a_fault_of_our_own_says_nothing_of_itself(connect: Connect) -> None:
    facade = await connect()
    app = facade._transport.app  # type: ignore[attr-defined]

    @app.get("/fault")
    async def fault() -> None:
        raise RuntimeError("secret")

    response = await facade.get("/fault")
    assert error_of(response) == (500, 13, "internal error")
    assert response.headers["x-content-type-options"] == "nosniff"
