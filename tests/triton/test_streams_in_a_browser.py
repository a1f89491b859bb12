"""Watch in a real browser: gRPC-Web by ``fetch``, each message there when it is made; and what becomes of the work of a closed page."""

from __future__ import annotations

from pathlib import Path

from protos.tensorgate.v1 import inference_pb2 as pb
from tests.browser.chromium import running_chromium
from tests.support.python_models import made
from tests.support.stack import Stack
from tests.triton.messages import counted, repeated

READ = """
    async ([url, message, most]) => {
        const body = new Uint8Array(5 + message.length);
        new DataView(body.buffer).setUint32(1, message.length);
        body.set(message, 5);
        const began = performance.now();
        const answer = await fetch(url, {
            method: "POST", body, headers: {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"},
        });
        const reader = answer.body.getReader();
        const pieces = [];
        for (let i = 0; i < most; i++) {
            const {done, value} = await reader.read();
            if (done) break;
            pieces.push([Array.from(value), performance.now() - began]);
        }
        return [answer.status, pieces];
    }
"""


def watch(request: pb.PredictRequest) -> list[int]:
    return list(pb.WatchRequest(request=request).SerializeToString())


async def test_each_message_reaches_the_page_when_it_is_made(triton_stack: Stack) -> None:
    url = f"{triton_stack.addresses.edge_url}/tensorgate.v1.InferenceService/Watch"
    message = watch(repeated([4, 5, 6], 400))
    async with running_chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{triton_stack.addresses.edge_url}/")
        status, pieces = await page.evaluate(READ, [url, message, 100])
    assert status == 200
    data = bytes(byte for piece, _ in pieces for byte in piece)
    values: list[int] = []
    while data[0] == 0:
        size = int.from_bytes(data[1:5], "big")
        outputs = pb.WatchResponse.FromString(data[5 : 5 + size]).outcome.response.outputs
        values += [value for output in outputs if output.name == "OUT" for value in output.int_values]
        data = data[5 + size :]
    assert values == [4, 5, 6]
    assert b"grpc-status:0" in data.replace(b" ", b"")
    times = [at for _, at in pieces]
    assert times[0] < 800 < times[1], "the first did not wait for the second"


async def test_a_page_that_closes_frees_its_work(triton_stack: Stack, example_repository: Path) -> None:
    name = f"page-{triton_stack.transport}"
    url = f"{triton_stack.addresses.edge_url}/tensorgate.v1.InferenceService/Watch"
    message = watch(counted(1_000_000, request_id=name))
    async with running_chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{triton_stack.addresses.edge_url}/")
        _, pieces = await page.evaluate(READ, [url, message, 3])
        assert len(pieces) == 3
        await page.close()
        assert await made(example_repository, name) > 0, "its generator was closed"
