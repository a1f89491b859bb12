"""The ways a photo comes in, and what is shown of the answer."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from playwright.async_api import FileChooser, Page, expect

from protos.tensorgate.v1 import inference_pb2 as pb
from tests.browser.chromium import Conduct
from tests.browser.fake_gateway import ORIGIN, FakeGateway, five_classes, image_model

pytestmark = pytest.mark.asyncio(loop_scope="session")

COFFEE = Path(__file__).resolve().parents[2] / "web_demo" / "src" / "samples" / "coffee.jpg"

MAKE_FILES = """([content, name, type]) => {
  const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type }));
  return data;
}"""


async def open_page(page: Page) -> None:
    await page.goto(ORIGIN + "/")
    await expect(page.get_by_label("Model")).to_be_enabled()


async def expect_espresso(page: Page) -> None:
    best = page.get_by_role("listitem").first
    await expect(best).to_contain_text("espresso")
    await expect(best).to_contain_text("95.0 %")


async def test_a_chosen_photo_goes_as_it_is_and_its_five_classes_come_back(page: Page, gateway: FakeGateway, conduct: Conduct) -> None:
    await open_page(page)
    await page.get_by_label("Choose a photo").set_input_files(COFFEE)
    await expect_espresso(page)
    await expect(page.get_by_role("listitem")).to_have_count(5)
    await expect(page.get_by_role("img", name="Preview of coffee.jpg")).to_be_visible()
    (request,) = gateway.requests
    assert (request.model, request.version, list(request.outputs), request.top_k) == ("efficientnet_lite0", "1", ["probabilities"], 5)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("input", "BYTES", [1, 1])
    assert list(tensor.bytes_values) == [COFFEE.read_bytes()]
    assert conduct.hosts == {"gateway.fake"}


@pytest.mark.parametrize("event", ["drop", "paste"])
async def test_a_photo_that_is_dropped_or_pasted(page: Page, gateway: FakeGateway, event: str) -> None:
    await open_page(page)
    content = base64.b64encode(COFFEE.read_bytes()).decode()
    data = await page.evaluate_handle(MAKE_FILES, [content, "dropped.jpg", "image/jpeg"])
    await page.evaluate(
        """([event, data]) => document.body.dispatchEvent(event === "drop"
             ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
             : new ClipboardEvent("paste", { clipboardData: data, bubbles: true }))""",
        [event, data],
    )
    await expect_espresso(page)
    assert list(gateway.requests[0].inputs[0].bytes_values) == [COFFEE.read_bytes()]


async def test_everything_works_by_keyboard(page: Page, gateway: FakeGateway) -> None:
    # Listening before the page is there: the browser hands choosers over only from some moment after the first listener.
    chooser: asyncio.Future[FileChooser] = asyncio.get_running_loop().create_future()
    page.on("filechooser", lambda opened: chooser.set_result(opened))  # noqa: PLW0108 - a builtin method will not do
    await open_page(page)
    for _ in range(2):  # The link to the API's documentation comes first.
        await page.keyboard.press("Tab")
    await expect(page.get_by_label("Choose a photo")).to_be_focused()
    outline = await page.locator("#drop-label").evaluate("(label) => getComputedStyle(label).outlineStyle")
    assert outline == "solid"
    await page.keyboard.press("Enter")
    await (await asyncio.wait_for(chooser, 20)).set_files(COFFEE)
    await expect_espresso(page)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Coffee")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("img", name="Preview of cat.jpg")).to_be_visible()
    assert len(gateway.requests) == 2


@pytest.mark.usefixtures("gateway")
async def test_the_answer_is_announced_with_its_time(page: Page) -> None:
    await open_page(page)
    await page.get_by_role("button", name="Coffee").click()
    await expect(page.get_by_role("status")).to_contain_text("Best guess: espresso, 95.0 %. Answered in ")


async def test_bytes_sent_and_the_servers_times_are_shown(page: Page, gateway: FakeGateway) -> None:
    await open_page(page)
    async with page.expect_request("**/Predict") as sent:
        await page.get_by_label("Choose a photo").set_input_files(COFFEE)
    body = (await sent.value).post_data_buffer or b""
    answer = page.get_by_role("region", name="Best guesses")
    await expect(answer).to_contain_text(f"Sent{len(body) / 1024:.1f} KB")
    await expect(answer).to_contain_text("Preparing the photo6.1 ms")
    await expect(answer).to_contain_text("Waiting for the model0.04 ms")
    await expect(answer).to_contain_text("Computing18.7 ms")
    assert len(body) == 5 + gateway.requests[0].ByteSize()


async def test_the_model_is_chosen_from_those_that_take_a_photo(page: Page, gateway: FakeGateway) -> None:
    numbers = pb.Model(name="a_numbers", version="1", state=pb.MODEL_STATE_READY, inputs=[pb.TensorSpec(name="x", datatype="FP32")])
    gateway.models = [numbers, image_model("net", "1"), image_model("net", "2"), image_model("other")]
    await open_page(page)
    picker = page.get_by_label("Model")
    await expect(picker.get_by_role("option")).to_have_text(["net, version 1", "net, version 2", "other"])
    await page.get_by_role("button", name="Coffee").click()
    await expect_espresso(page)
    async with page.expect_response("**/Predict"):
        await picker.select_option("net, version 2")
    await expect(page.get_by_text("net: 1000 everyday things")).to_be_visible()
    assert [(request.model, request.version) for request in gateway.requests] == [("net", "1"), ("net", "2")]


async def test_an_old_answer_never_replaces_a_newer_one(page: Page, gateway: FakeGateway) -> None:
    await open_page(page)
    gateway.hold = held = asyncio.Event()
    gateway.predict = lambda _: pb.PredictResponse(model="too late")
    await page.get_by_role("button", name="Cat").click()
    await expect(page.get_by_text("Asking efficientnet_lite0…")).to_be_visible()
    gateway.hold, gateway.predict = None, five_classes
    await page.get_by_role("button", name="Coffee").click()
    await expect_espresso(page)
    held.set()
    # A round trip that starts after the late answer was sent: had the page taken that, it would show now.
    assert await page.evaluate("fetch('/').then((response) => response.status)") == 200
    await expect_espresso(page)


async def test_labels_are_text_and_never_markup(page: Page, gateway: FakeGateway) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"

    def answer(request: pb.PredictRequest) -> pb.PredictResponse:
        response = five_classes(request)
        response.classes[0].top[0].label = hostile
        return response

    gateway.predict = answer
    await open_page(page)
    await page.get_by_role("button", name="Coffee").click()
    await expect(page.get_by_role("listitem").first).to_contain_text(hostile)
    assert await page.title() == "Tensorgate"


async def test_scores_that_are_no_probabilities_are_shown_as_they_are(page: Page, gateway: FakeGateway) -> None:
    gateway.predict = lambda _: pb.PredictResponse(
        model="net", classes=[pb.RowClasses(top=[pb.ClassScore(label="cup", score=11.25), pb.ClassScore(label="bowl", score=-2.5)])]
    )
    await open_page(page)
    await page.get_by_role("button", name="Coffee").click()
    await expect(page.get_by_role("listitem").first).to_have_text("cup11.25")
    await expect(page.get_by_role("listitem").nth(1)).to_have_text("bowl-2.50")


@pytest.mark.parametrize("width", [320, 390, 768])
async def test_nothing_is_wider_than_the_screen(page: Page, gateway: FakeGateway, width: int) -> None:
    gateway.models = [image_model("a_model_with_quite_a_long_name_" * 3)]
    await page.set_viewport_size({"width": width, "height": 800})
    await open_page(page)
    await page.get_by_role("button", name="Coffee").click()
    await expect_espresso(page)
    assert await page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.usefixtures("gateway")
async def test_the_answer_is_brought_into_view_on_a_phone(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 700})
    await open_page(page)
    await page.get_by_role("button", name="Coffee").click()
    await expect(page.get_by_role("listitem").first).to_be_in_viewport()


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_stands_out_in_both_colour_schemes(page: Page, scheme: str) -> None:
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await open_page(page)
    ground, ink = await page.evaluate(
        """() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color].map((c) =>
             c.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((sum, part) => sum + part, 0) / 765); }"""
    )
    assert (ground < 0.2 and ink > 0.8) if scheme == "dark" else (ground > 0.8 and ink < 0.2)
