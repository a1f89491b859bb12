"""What the page says when something does not work: what happened, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from core_grpc.errors import StatusCode
from protos.tensorgate.v1 import inference_pb2 as pb
from tests.browser.chromium import Conduct
from tests.browser.fake_gateway import ORIGIN, Failure, FakeGateway, five_classes, image_model

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = "net::ERR_CONNECTION_REFUSED"


async def problem_after_asking(page: Page) -> Locator:
    await page.goto(ORIGIN + "/")
    await expect(page.get_by_label("Model")).to_be_enabled()
    await page.get_by_role("button", name="Coffee").click()
    return page.get_by_role("alert")


@pytest.mark.parametrize(
    ("code", "title", "advice"),
    [
        (StatusCode.INVALID_ARGUMENT, "The server cannot read this file as a photo", "Choose an ordinary JPEG or PNG"),
        (StatusCode.DEADLINE_EXCEEDED, "No answer within 30 seconds", "Try again"),
        (StatusCode.RESOURCE_EXHAUSTED, "This is more than the server takes now", "try again in a moment"),
        (StatusCode.UNAVAILABLE, "The server cannot run models right now", "Try again in a few seconds"),
        (StatusCode.NOT_FOUND, "does not have the model efficientnet_lite0", "Choose one"),
        (StatusCode.INTERNAL, "Something went wrong inside the server", "log says more"),
        (StatusCode.UNAUTHENTICATED, "wants to know who you are", "Ask whoever runs the server"),
        (StatusCode.PERMISSION_DENIED, "does not allow this", "Ask whoever runs the server"),
        (StatusCode.UNIMPLEMENTED, "does not have the API", "Reload the page"),
    ],
)
async def test_each_status_has_plain_words(page: Page, gateway: FakeGateway, code: StatusCode, title: str, advice: str) -> None:
    gateway.predict = lambda _: Failure(code, "input 'input': wanted this, got that: 100 % ünlike")
    problem = await problem_after_asking(page)
    await expect(problem).to_contain_text(title)
    await expect(problem).to_contain_text(advice)
    await expect(problem).to_contain_text("The server says: input 'input': wanted this, got that: 100 % ünlike")


async def test_a_stopped_server_and_its_return(page: Page, gateway: FakeGateway, conduct: Conduct) -> None:
    conduct.expect(REFUSED)
    await page.goto(ORIGIN + "/")
    await page.get_by_role("button", name="Coffee").click()
    await expect(page.get_by_role("listitem")).to_have_count(5)
    gateway.is_up = False
    await page.get_by_label("Model").dispatch_event("change")
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("The server does not answer")
    await expect(problem).to_contain_text("Start it with “tensorgate serve”")
    gateway.is_up = True
    await problem.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("listitem")).to_have_count(5)
    await expect(problem).to_be_hidden()


async def test_a_sample_that_cannot_be_fetched(page: Page, gateway: FakeGateway, conduct: Conduct) -> None:
    conduct.expect(REFUSED)
    await page.goto(ORIGIN + "/")
    await expect(page.get_by_label("Model")).to_be_enabled()
    gateway.is_up = False
    await page.get_by_role("button", name="Cat").click()
    await expect(page.get_by_role("alert")).to_contain_text("The sample photo could not be fetched")


async def test_a_file_of_another_kind_is_not_sent(page: Page, gateway: FakeGateway) -> None:
    await page.goto(ORIGIN + "/")
    await page.get_by_label("Choose a photo").set_input_files({"name": "thesis.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7"})
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("“thesis.pdf” is not a photo")
    await expect(problem).to_contain_text("It is a PDF. Choose a JPEG, PNG or WebP file.")
    assert gateway.requests == []


async def test_a_file_above_the_message_limit_is_not_sent(page: Page, gateway: FakeGateway, tmp_path: Path) -> None:
    large = tmp_path / "large.jpg"
    with large.open("wb") as file:
        file.truncate(70 << 20)
    await page.goto(ORIGIN + "/")
    await page.get_by_label("Choose a photo").set_input_files(large)
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("“large.jpg” is too large")
    await expect(problem).to_contain_text("It has 70.0 MB; the server takes up to 64.0 MB in one message.")
    assert gateway.requests == []


@pytest.mark.usefixtures("gateway")
async def test_dropped_text_is_not_a_photo(page: Page) -> None:
    await page.goto(ORIGIN + "/")
    await expect(page.get_by_label("Model")).to_be_enabled()
    await page.evaluate(
        """() => { const data = new DataTransfer(); data.setData("text/plain", "https://example.org/cat.jpg");
             document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })); }"""
    )
    await expect(page.get_by_role("alert")).to_contain_text("That was not a file")


async def test_a_model_that_is_gone_leaves_the_list(page: Page, gateway: FakeGateway) -> None:
    def gone(_: pb.PredictRequest) -> Failure:
        gateway.models = [image_model("other")]
        return Failure(StatusCode.NOT_FOUND, "model 'efficientnet_lite0' is unknown")

    gateway.predict = gone
    problem = await problem_after_asking(page)
    await expect(problem).to_contain_text("The list of models has been read again")
    await expect(page.get_by_label("Model").get_by_role("option")).to_have_text(["other"])


async def test_a_model_that_is_not_ready_says_why(page: Page, gateway: FakeGateway) -> None:
    def loading(_: pb.PredictRequest) -> Failure:
        gateway.models = [image_model(state=pb.MODEL_STATE_UNAVAILABLE, reason="the file is no ONNX model"), image_model("other")]
        return Failure(StatusCode.UNAVAILABLE, "model 'efficientnet_lite0' is not ready")

    gateway.predict = loading
    problem = await problem_after_asking(page)
    await expect(problem).to_contain_text("The model efficientnet_lite0 does not answer now")
    await expect(problem).to_contain_text("It is not available: the file is no ONNX model.")
    await expect(problem).to_contain_text("choose another model")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "The server has no models."),
        ([image_model(state=pb.MODEL_STATE_LOADING)], "Model efficientnet_lite0 is still loading."),
        ([pb.Model(name="numbers", state=pb.MODEL_STATE_READY)], "The server has one model, but none takes a photo."),
    ],
)
async def test_no_model_to_offer(page: Page, gateway: FakeGateway, models: list[pb.Model], words: str) -> None:
    gateway.models = models
    await page.goto(ORIGIN + "/")
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text(words)
    await expect(page.get_by_label("Model")).to_be_disabled()
    gateway.models = [image_model()]
    await problem.get_by_role("button", name="Try again").click()
    await expect(page.get_by_label("Model")).to_be_enabled()
    await expect(problem).to_be_hidden()


async def test_a_photo_is_answered_once_the_models_can_be_read(page: Page, gateway: FakeGateway) -> None:
    gateway.models = Failure(StatusCode.UNAVAILABLE, "no healthy upstream")
    await page.goto(ORIGIN + "/")
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("The server cannot run models right now")
    async with page.expect_response("**/ListModels"):
        await page.get_by_role("button", name="Coffee").click()
    await expect(problem).to_contain_text("The server cannot run models right now")
    gateway.models = [image_model()]
    gateway.predict = five_classes
    await problem.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("listitem")).to_have_count(5)
