"""The small HTTP client, against servers that are good, absent, slow and broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tensorgate.small_http import Answer, request, wait_for_ok


@asynccontextmanager
async def server(path: Path, *answers: bytes) -> AsyncIterator[list[bytes]]:
    """Answers each connection with the next of ``answers``, the last one for ever; keeps what was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(asked), len(answers)) - 1])
        writer.close()

    listener = await asyncio.start_unix_server(serve, path)
    async with listener:
        yield asked


async def test_a_plain_answer(tmp_path: Path) -> None:
    async with server(tmp_path / "s", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as asked:
        assert await request(tmp_path / "s", "POST", "/x") == Answer(200, "ok")
    assert asked[0].startswith(b"POST /x HTTP/1.1\r\n")


async def test_a_chunked_answer(tmp_path: Path) -> None:
    body = b"4\r\nname\r\n6;x=y\r\n: 0\r\n\n\r\n0\r\n\r\n"
    async with server(tmp_path / "s", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body):
        assert (await request(tmp_path / "s", "GET", "/")).body == "name: 0\r\n\n"


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nx"]
)
async def test_a_broken_server_never_raises(tmp_path: Path, answer: bytes) -> None:
    async with server(tmp_path / "s", answer):
        assert (await request(tmp_path / "s", "GET", "/")).body == ""


async def test_nobody_there(tmp_path: Path) -> None:
    assert await request(tmp_path / "absent", "GET", "/") == Answer(0, "")


async def test_a_server_that_says_nothing(tmp_path: Path) -> None:
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.close()

    listener = await asyncio.start_unix_server(silent, tmp_path / "s")
    async with listener:
        assert await request(tmp_path / "s", "GET", "/", timeout_s=0.05) == Answer(0, "")
        await asyncio.sleep(0.6)


async def test_waits_until_the_answer_is_200(tmp_path: Path) -> None:
    async with server(tmp_path / "s", b"HTTP/1.1 503 x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n") as asked:
        await asyncio.wait_for(wait_for_ok(tmp_path / "s", "/ready", poll_s=0), 10)
    assert len(asked) == 2
