"""Debian's Chromium under Playwright, and a record of what a page did that it should not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

INSTALL = "Chromium is missing: install it with `apt-get install chromium` (Debian) and run the browser tests again"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    """A headless Chromium with a fresh profile. A missing Chromium fails the test: a skipped page test proves nothing."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail(INSTALL)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Conduct:
    """What a page did: its complaints and where its requests went."""

    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console (refusals by the content security policy are among them), and uncaught exceptions."""
    hosts: set[str] = field(default_factory=set)
    """`host:port` of every request."""
    expected: list[str] = field(default_factory=list)

    def expect(self, part: str) -> None:
        """Complaints with this in them are what the test provokes."""
        self.expected.append(part)

    def unexpected(self) -> list[str]:
        """The other complaints."""
        return [complaint for complaint in self.complaints if not any(part in complaint for part in self.expected)]

    def watch(self, page: Page) -> None:
        """Starts recording."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)
