"""A browser for all tests, a fresh profile and a watched page for each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser.chromium import Conduct, running_chromium
from tests.browser.fake_gateway import FakeGateway

EXPECT_MS = 10_000
"""How long the page may take to show what a test waits for."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for the session."""
    expect.set_options(timeout=EXPECT_MS)
    async with running_chromium() as chromium:
        yield chromium


@pytest.fixture
def conduct() -> Conduct:
    """What the page of this test did. Tests that provoke a complaint say so by ``conduct.expect``."""
    return Conduct()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, conduct: Conduct) -> AsyncIterator[Page]:
    """A page with a profile of its own; it must have complained about nothing when the test ends."""
    context = await browser.new_context(viewport={"width": 1200, "height": 860}, reduced_motion="reduce")
    context.set_default_timeout(EXPECT_MS)
    page = await context.new_page()
    conduct.watch(page)
    yield page
    await context.close()
    assert conduct.unexpected() == []


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(page: Page) -> FakeGateway:
    """The fake server that the page of this test talks to."""
    fake = FakeGateway()
    await fake.serve(page)
    return fake
