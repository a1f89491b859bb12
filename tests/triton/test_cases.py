"""Cases of the collected bug reports that want Triton's extensions, or callers who leave. Ids are in the names."""

from __future__ import annotations

import asyncio
import random
import time

import grpc
import grpc.aio
import httpx
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from tests.support.stack import Stack
from tests.triton.messages import DOORS, infer, number_of, target

SCORES = [[0.1, 0.6, 0.2, 0.1], [0.4, 0.1, 0.1, 0.4]]


def texts(raw: bytes) -> list[str]:
    found = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


TWO = ["0.600000:1:dog", "0.200000:2:owl", "0.400000:0:cat", "0.400000:3:fox"]


@pytest.mark.parametrize("door", DOORS)
async def test_wire_26_classification_over_grpc(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)

        async def classes(model: str, parameter: pb.InferParameter, datatype: str = "FP32") -> tuple[list[int], list[str]]:
            request = infer(model, SCORES, datatype=datatype)
            request.outputs.add(name="Y").parameters["classification"].CopyFrom(parameter)
            answer = await stub.ModelInfer(request, timeout=10)
            assert answer.outputs[0].datatype == ("BYTES" if parameter.int64_param else datatype)
            return list(answer.outputs[0].shape), texts(answer.raw_output_contents[0]) if parameter.int64_param else []

        assert await classes("probs", pb.InferParameter(int64_param=2)) == ([2, 2], TWO)
        assert (await classes("probs", pb.InferParameter(int64_param=5)))[0] == [2, 4], "as many as there are"
        assert (await classes("probs", pb.InferParameter(int64_param=0)))[0] == [2, 4], "0 is values"
        for parameter in (pb.InferParameter(int64_param=-1), pb.InferParameter(string_param="2"), pb.InferParameter(bool_param=True)):
            with pytest.raises(grpc.aio.AioRpcError, match="classification: wanted the number of classes"):
                await classes("probs", parameter)
        with pytest.raises(grpc.aio.AioRpcError, match="class result not available for output 'Y' due to unsupported type BOOL"):
            await classes("id_bool", pb.InferParameter(int64_param=1), "BOOL")


@pytest.mark.parametrize("binary", [False, True])
def test_wire_26_classification_over_rest(triton_stack: Stack, binary: bool) -> None:
    url = f"{triton_stack.addresses.edge_url}/v2/models/probs/infer"
    tensor = {"name": "X", "datatype": "FP32", "shape": [2, 4], "data": SCORES}
    output = {"name": "Y", "parameters": {"classification": 2, "binary_data": binary}}
    answer = httpx.post(url, json={"inputs": [tensor], "outputs": [output]})
    if binary:
        assert texts(answer.content[int(answer.headers["inference-header-content-length"]) :]) == TWO
    else:
        assert answer.json()["outputs"][0] == {"name": "Y", "datatype": "BYTES", "shape": [2, 2], "data": TWO}
    for wrong in (-1, "2", 1.5, True):
        output = {"name": "Y", "parameters": {"classification": wrong}}
        assert httpx.post(url, json={"inputs": [tensor], "outputs": [output]}).status_code == 400


@pytest.mark.parametrize("door", DOORS)
async def test_str_05_a_cancelled_member_stops_nobody(triton_stack: Stack, door: str) -> None:
    dice = random.Random(5)
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(6):
            calls = [stub.ModelInfer(infer("slow", [[number]]), timeout=10) for number in range(4)]
            await asyncio.sleep(dice.uniform(0, 0.5))
            calls[0].cancel()
            calls[2].cancel()
            for number in (1, 3):
                assert number_of(await calls[number]) == number
        after = await asyncio.gather(*(stub.ModelInfer(infer("slow", [[number]]), timeout=10) for number in range(20)))
        assert list(map(number_of, after)) == list(range(20))


@pytest.mark.parametrize("door", DOORS)
async def test_str_07_every_call_ends(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        cancelled = stub.ModelInfer(infer("slow", [[1]]), timeout=10)
        await asyncio.sleep(0.1)
        cancelled.cancel()
        assert await cancelled.code() is grpc.StatusCode.CANCELLED
        late = stub.ModelInfer(infer("slow", [[1]]), timeout=0.1)
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        began = time.monotonic()
        during = [stub.ModelInfer(infer("slow", [[number]]), timeout=10) for number in range(8)]
        await asyncio.sleep(0.05)
        await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="slow"), timeout=10)
        codes = {await call.code() for call in during}
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND}
        assert grpc.StatusCode.OK in codes
        assert time.monotonic() - began < 5
        await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="slow"), timeout=10)
        assert (await stub.ModelInfer(infer("slow", [[7]]), timeout=10)).outputs


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/slow_unbatched/infer", {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}),
        ("/v1/models/slow_unbatched:predict", {"inputs": {"X": [[1]]}}),
    ],
)
async def test_str_14_work_of_callers_who_left_is_not_done(triton_stack: Stack, path: str, body: dict[str, object]) -> None:
    async with httpx.AsyncClient(base_url=triton_stack.addresses.edge_url) as client:

        async def leave() -> None:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(path, json=body, timeout=0.25)

        await asyncio.gather(*(leave() for _ in range(20)))
        began = time.monotonic()
        answer = await client.post(path, json=body, timeout=20)
        assert answer.status_code == 200
        assert time.monotonic() - began < 4.0, "about one run of 0.3 s, not twenty"


@pytest.mark.parametrize("door", DOORS)
async def test_the_parameter_timeout_bounds_the_wait_and_not_the_run(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        alone = infer("slow_unbatched", [[1]], "runs")
        alone.parameters["timeout"].int64_param = 100_000  # It runs for 300 ms.
        assert number_of(await stub.ModelInfer(alone, timeout=10)) == 1
        running = asyncio.ensure_future(stub.ModelInfer(infer("slow_unbatched", [[2]]), timeout=10))
        await asyncio.sleep(0.1)
        waiting = infer("slow_unbatched", [[3]], "waits")
        waiting.parameters["timeout"].int64_param = 50_000
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(waiting, timeout=10)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not running.done()
        await running
