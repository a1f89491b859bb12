"""The page as a user meets it: served by ``tensorgate serve`` at ``/``, with the demo model behind it."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.chromium import Conduct
from tests.support.programs import ROOT, Program, descendants, wait_until, write_identity_model

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

SAMPLES = ROOT / "web_demo" / "src" / "samples"
READY = "Tensorgate is ready"
NODE_READY = "node: 1 of 1 models ready"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_server(port: int, *arguments: str) -> Iterator[Program]:
    """``tensorgate serve`` from ready to gone."""
    with Program(
        "tensorgate", "serve", "--port", str(port), "--grpc-port", str(free_port()), *arguments, env={"TENSORGATE_DRAIN_NOTICE_S": "0"}
    ) as program:
        program.wait_for(READY)
        yield program
        if program.process.poll() is None:
            stop(program)


def stop(program: Program) -> None:
    program.send(signal.SIGTERM)
    assert program.wait() == 0, program.output


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server with the demo model."""
    port = free_port()
    with running_server(port):
        yield f"127.0.0.1:{port}"


async def open_page(page: Page, address: str) -> None:
    await page.goto(f"http://{address}/")
    await expect(page.get_by_label("Model")).to_be_enabled()


async def best_guess(page: Page) -> tuple[str, float]:
    """The first class and its percentage."""
    best = page.get_by_role("listitem").first
    await expect(best).to_be_visible()
    label, percentage = re.fullmatch(r"(.+?)([\d.]+) %", await best.inner_text(), re.DOTALL).groups()  # type: ignore[union-attr]
    return label.strip(), float(percentage)


@pytest.mark.parametrize(("photo", "label", "wanted"), [("coffee", "espresso", 95), ("camera", "tripod", 94)])
async def test_the_demo_model_knows_a_photo(page: Page, server: str, photo: str, label: str, wanted: float) -> None:
    await open_page(page, server)
    await page.get_by_label("Choose a photo").set_input_files(SAMPLES / f"{photo}.jpg")
    guess, percentage = await best_guess(page)
    assert guess == label
    assert percentage == pytest.approx(wanted, abs=2)
    await expect(page.get_by_role("listitem")).to_have_count(5)
    await expect(page.get_by_role("region", name="Best guesses")).to_contain_text("efficientnet_lite0, version 1")


async def test_the_page_asks_nobody_but_its_server(page: Page, server: str, conduct: Conduct) -> None:
    await open_page(page, server)
    await page.get_by_role("button", name="Photographer").click()
    assert (await best_guess(page))[0] == "tripod"
    assert conduct.hosts == {server}


async def test_the_servers_times_are_real_and_fit_into_the_whole(page: Page, server: str) -> None:
    await open_page(page, server)
    async with page.expect_response("**/Predict") as response:
        await page.get_by_role("button", name="Cat").click()
    assert (await response.value).request.headers["content-type"] == "application/grpc-web+proto"
    _, percentage = await best_guess(page)
    assert percentage > 0
    legend = page.locator(".legend dd")
    preparing, _waiting, computing, _rest = [float(re.match(r"[\d.]+", text).group()) for text in await legend.all_inner_texts()]  # type: ignore[union-attr]
    assert preparing > 0
    assert computing > 0


async def test_text_under_a_photos_name_is_told_in_plain_words_and_the_next_photo_works(page: Page, server: str) -> None:
    await open_page(page, server)
    await page.get_by_label("Choose a photo").set_input_files({"name": "notes.jpg", "mimeType": "image/jpeg", "buffer": b"only text"})
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("The server cannot read this file as a photo")
    await expect(problem).to_contain_text("Choose an ordinary JPEG or PNG")
    await expect(problem).to_contain_text("The server says: ")
    await page.get_by_role("button", name="Coffee").click()
    assert (await best_guess(page))[0] == "espresso"
    await expect(problem).to_be_hidden()


async def test_a_photo_of_several_megabytes(page: Page, server: str, tmp_path: Path) -> None:
    # Bytes after a JPEG's end belong to no pixel: a large file with a small picture. Not larger, because the driver's copies of what a
    # page sends take a third of a second for each megabyte.
    large = tmp_path / "large.jpg"
    large.write_bytes((SAMPLES / "coffee.jpg").read_bytes())
    with large.open("r+b") as file:
        file.truncate(6 << 20)
    await open_page(page, server)
    await page.get_by_label("Choose a photo").set_input_files(large)
    assert (await best_guess(page))[0] == "espresso"
    await expect(page.get_by_role("region", name="Best guesses")).to_contain_text("Sent6.0 MB")


async def test_a_server_that_stops_and_comes_back(page: Page, conduct: Conduct) -> None:
    conduct.expect("net::ERR_")
    port = free_port()
    problem = page.get_by_role("alert")
    with running_server(port) as program:
        await open_page(page, f"127.0.0.1:{port}")
        stop(program)
        await page.get_by_label("Choose a photo").set_input_files(SAMPLES / "coffee.jpg")
        await expect(problem).to_contain_text("The server does not answer")
        await expect(problem).to_contain_text("Start it with “tensorgate serve”")
    with running_server(port):
        await problem.get_by_role("button", name="Try again").click()
        assert (await best_guess(page))[0] == "espresso"


async def test_a_node_that_dies_behind_a_living_edge(page: Page, conduct: Conduct) -> None:
    conduct.expect("503 (Service Unavailable)")
    port = free_port()
    problem = page.get_by_role("alert")
    with running_server(port) as program:
        await open_page(page, f"127.0.0.1:{port}")
        (node,) = [pid for pid, command in descendants(program.pid).items() if "node" in command and "envoy" in command]
        os.kill(node, signal.SIGKILL)
        await page.get_by_label("Choose a photo").set_input_files(SAMPLES / "coffee.jpg")
        await expect(problem).to_contain_text("The server cannot run models right now")
        wait_until(lambda: program.output.count(NODE_READY) == 2, "the node is back")
        await try_until_answered(page)


async def try_until_answered(page: Page) -> None:
    """Tries again as a user does: the edge takes a moment to notice that the node is back."""
    again = page.get_by_role("button", name="Try again")
    for _ in range(20):
        async with page.expect_response("**/Predict") as response:
            await again.click()
        if (await response.value).status == 200:
            break
        await expect(again).to_be_visible()
    assert (await best_guess(page))[0] == "espresso"


async def test_a_model_that_could_not_be_loaded_is_named_with_the_reason(page: Page, tmp_path: Path) -> None:
    write_identity_model(tmp_path, "numbers")
    version = tmp_path / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"not a model")
    port = free_port()
    with running_server(port, "--models", str(tmp_path)):
        await page.goto(f"http://127.0.0.1:{port}/")
        problem = page.get_by_role("alert")
        await expect(problem).to_contain_text("No model here can look at photos now")
        await expect(problem).to_contain_text("Model broken is not available: ")
