"""The streams over real servers: order, ends, failures, readers that are slow and readers that leave. Ids are those of the case list."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest
from google.protobuf import json_format

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from protos.tensorgate.v1 import inference_pb2 as tg
from protos.tensorgate.v1 import inference_pb2_grpc as tg_grpc
from tests.support.stack import Stack

DOORS = ["node", "edge"]


def target(stack: Stack, door: str) -> str:
    return stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc


def infer(model: str, values: Sequence[float], request_id: str) -> pb.ModelInferRequest:
    array = np.array([values], np.float32)
    request = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[array.tobytes()])
    request.inputs.add(name="X", datatype="FP32", shape=array.shape)
    return request


def repeat(values: Sequence[int], delay_ms: int = 0, request_id: str = "") -> pb.ModelInferRequest:
    arrays = {"IN": np.array(values, np.int32), "DELAY": np.full(len(values), delay_ms, np.uint32), "WAIT": np.zeros(1, np.uint32)}
    request = pb.ModelInferRequest(model_name="repeat_int32", id=request_id)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype="INT32" if name == "IN" else "UINT32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def predict(model: str, request_id: str = "", **inputs: tuple[str, list[int]]) -> tg.PredictRequest:
    request = tg.PredictRequest(model=model, id=request_id)
    for name, (datatype, values) in inputs.items():
        field = "int64_values" if datatype == "UINT32" else "int_values" if datatype.startswith("INT") else "float_values"
        request.inputs.add(name=name, datatype=datatype, shape=[len(values)], **{field: values})
    return request


def repeated(values: list[int], delay_ms: int = 0, request_id: str = "") -> tg.PredictRequest:
    delays = ("UINT32", [delay_ms] * len(values))
    return predict("repeat_int32", request_id, IN=("INT32", values), DELAY=delays, WAIT=("UINT32", [0]))


def counted(end: int, fail_at: int = -1, size: int = 1, request_id: str = "") -> tg.PredictRequest:
    request = predict("count", request_id, N=("INT32", [end, fail_at, size]))
    request.encoding = tg.TENSOR_ENCODING_RAW
    return request


def row(model: str, value: float, request_id: str = "") -> tg.PredictRequest:
    request = tg.PredictRequest(model=model, id=request_id)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1], float_values=[value])
    return request


async def sent(requests: Sequence[Any], hold: asyncio.Event | None = None) -> AsyncIterator[Any]:
    """The requests, then the half-close, which ``hold`` may put off."""
    for request in requests:
        yield request
    if hold:
        await hold.wait()


def number_of(response: pb.ModelInferResponse) -> float:
    return float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])


@pytest.mark.parametrize("door", DOORS)
async def test_str_02_half_close_with_answers_outstanding(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(sent([infer("slow", [n], str(n)) for n in range(5)]), timeout=20)
        answers = [answer async for answer in call]
        assert [(answer.infer_response.id, number_of(answer.infer_response)) for answer in answers] == [(str(n), n) for n in range(5)]
        assert all(answer.infer_response.parameters["triton_final_response"].bool_param for answer in answers)
        assert [answer async for answer in stub.ModelStreamInfer(sent([]), timeout=5)] == []


@pytest.mark.parametrize("door", DOORS)
async def test_failures_are_in_band_unless_asked_otherwise(triton_stack: Stack, door: str) -> None:
    requests = [infer("id_fp32", [1], "a"), infer("nope", [1], "b"), infer("id_fp32", [2], "c")]
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        answers = [answer async for answer in stub.ModelStreamInfer(sent(requests), timeout=20)]
        assert [answer.infer_response.id for answer in answers] == ["a", "b", "c"]
        assert [bool(answer.error_message) for answer in answers] == [False, True, False]
        assert answers[1].error_message == "Request for unknown model: 'nope' is not found"
        # Still open when the failure ends it: this client forgets the status where it was sending.
        call = stub.ModelStreamInfer(sent(requests[1:2], asyncio.Event()), timeout=20, metadata=[("triton_grpc_error", "true")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [answer async for answer in call]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("door", DOORS)
async def test_str_04_cancelling_a_stream_with_queued_work(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)

        async def executions() -> int:
            answer = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="slow_unbatched"))
            return int(answer.model_stats[0].execution_count)

        before = await executions()
        call = stub.ModelStreamInfer(sent([infer("slow_unbatched", [n], str(n)) for n in range(10)], asyncio.Event()))
        await asyncio.sleep(0.15)
        call.cancel()
        await asyncio.sleep(1.5)
        assert await executions() - before <= 2


@pytest.mark.parametrize("door", DOORS)
async def test_str_01_clients_vanish_in_the_middle_of_streams(triton_stack: Stack, door: str) -> None:
    async def vanish(number: int) -> None:
        async with grpc.aio.insecure_channel(target(triton_stack, door), options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            requests = [infer("slow", [number], str(n)) for n in range(20)]
            call = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(sent(requests, asyncio.Event()))
            await anext(aiter(call))

    await asyncio.gather(*map(vanish, range(16)))
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        began = time.monotonic()
        answer = await pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer("slow", [7], "after"), timeout=20)
        assert number_of(answer) == 7
        assert time.monotonic() - began < 3, "what the vanished had queued is gone"


@pytest.mark.parametrize("door", DOORS)
async def test_str_08_concurrent_streams_keep_their_ids(triton_stack: Stack, door: str) -> None:
    async def stream(number: int) -> None:
        async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
            wanted = [number * 1000.0 + n for n in range(200)]
            call = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(sent([infer("id_fp32", [v], str(v)) for v in wanted]))
            answers = [(answer.infer_response.id, number_of(answer.infer_response)) async for answer in call]
            assert answers == [(str(value), value) for value in wanted]

    async def unary(number: int) -> None:
        async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
            for n in range(50):
                answer = await pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer("id_fp32", [number + n], "u"))
                assert number_of(answer) == number + n

    await asyncio.gather(*map(stream, range(8)), *(unary(n * 10_000) for n in range(4)))


@pytest.mark.parametrize("door", DOORS)
async def test_decoupled_answers_interleave_with_others(triton_stack: Stack, door: str) -> None:
    requests = [repeat([1, 2, 3], 100, "many"), infer("id_fp32", [5], "one")]
    requests[0].parameters["triton_enable_empty_final_response"].bool_param = True
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        call = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(sent(requests), timeout=20)
        answers = [answer.infer_response async for answer in call]
        with pytest.raises(grpc.aio.AioRpcError, match="decoupled") as caught:
            await pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(repeat([1]))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert [answer.id for answer in answers if answer.id == "many"] == ["many"] * 4
    assert answers[-1].id == "many"
    assert not answers[-1].outputs
    assert [answer.parameters["triton_final_response"].bool_param for answer in answers if answer.id == "many"] == [False] * 3 + [True]


@pytest.mark.parametrize("door", DOORS)
async def test_watch_sends_each_answer_when_it_is_made(triton_stack: Stack, door: str) -> None:
    began = time.monotonic()
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        call = tg_grpc.InferenceServiceStub(channel).Watch(tg.WatchRequest(request=repeated([4, 5, 6], 400, "w")), timeout=20)
        got = [(answer, time.monotonic() - began) async for answer in call]
    assert [list(answer.outcome.response.outputs[0].int_values) for answer, _ in got[:-1]] == [[4], [5], [6]]
    assert [answer.final for answer, _ in got] == [False, False, False, True]
    assert {answer.outcome.id for answer, _ in got} == {"w"}
    assert got[0][1] < 0.75 < got[1][1] < got[2][1], "none waited for the next"


def watched(stack: Stack, request: tg.PredictRequest, accept: str) -> tuple[httpx.Response, list[tuple[bytes, float]]]:
    """The pieces of a REST watch as they came, and when."""
    body = json_format.MessageToDict(tg.WatchRequest(request=request), preserving_proto_field_name=True)
    began = time.monotonic()
    with httpx.stream("POST", f"{stack.addresses.edge_url}/v1/watch", json=body, headers={"accept": accept}, timeout=20) as response:
        pieces = [(piece, time.monotonic() - began) for piece in response.iter_raw()]
    return response, pieces


@pytest.mark.parametrize(
    ("accept", "kind", "start"),
    [("application/json", "application/x-ndjson", b""), ("text/event-stream", "text/event-stream", b"data: ")],
)
def test_watch_over_rest(triton_stack: Stack, accept: str, kind: str, start: bytes) -> None:
    response, pieces = watched(triton_stack, repeated([4, 5, 6], 400), accept)
    assert response.status_code == 200
    assert response.headers["content-type"] == kind
    assert pieces[0][1] < 0.75 < pieces[1][1], "each is sent when it is made"
    lines = [line for line in b"".join(piece for piece, _ in pieces).splitlines() if line]
    assert all(line.startswith(start) for line in lines)
    messages = [json.loads(line.removeprefix(start)) for line in lines]
    assert [message["outcome"]["response"]["outputs"][0]["int_values"] for message in messages[:-1]] == [[4], [5], [6]]
    assert [message["final"] for message in messages] == [False, False, False, True]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_str_10_errors_of_transcoded_streams(triton_stack: Stack, accept: str) -> None:
    response, pieces = watched(triton_stack, predict("nope"), accept)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert json.loads(b"".join(piece for piece, _ in pieces))["code"] == 5
    response, pieces = watched(triton_stack, counted(5, fail_at=1), accept)
    last = json.loads(
        b"".join(piece for piece, _ in pieces).splitlines()[-1 if accept == "application/json" else -2].removeprefix(b"data: ")
    )
    assert last["final"] is True
    assert last["outcome"]["code"] == 13
    assert "RuntimeError: the model tired" in last["outcome"]["message"]


def web_frames(body: bytes) -> list[tuple[int, bytes]]:
    frames = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        frames.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return frames


def test_watch_over_grpc_web(triton_stack: Stack) -> None:
    message = tg.WatchRequest(request=repeated([4, 5, 6], 400)).SerializeToString()
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    url = f"{triton_stack.addresses.edge_url}/tensorgate.v1.InferenceService/Watch"
    began, body, first = time.monotonic(), b"", 0.0
    with httpx.stream("POST", url, content=b"\0" + len(message).to_bytes(4, "big") + message, headers=headers, timeout=20) as response:
        for piece in response.iter_raw():
            first = first or time.monotonic() - began
            body += piece
    *messages, trailers = web_frames(body)
    answers = [tg.WatchResponse.FromString(data) for _, data in messages]
    assert [list(answer.outcome.response.outputs[0].int_values) for answer in answers[:-1]] == [[4], [5], [6]]
    assert trailers[0] == 0x80
    assert b"grpc-status:0" in trailers[1].replace(b" ", b"")
    assert first < 0.75


@pytest.mark.parametrize("path", ["/tensorgate.v1.InferenceService/Watch", "/inference.GRPCInferenceService/ModelInfer"])
def test_str_12_a_failure_without_an_answer_over_grpc_web(triton_stack: Stack, path: str) -> None:
    known = path.endswith("Watch")
    message = (tg.WatchRequest(request=predict("nope")) if known else infer("nope", [1], "")).SerializeToString()
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1", "origin": "http://localhost:3000"}
    body = b"\0" + len(message).to_bytes(4, "big") + message
    response = httpx.post(triton_stack.addresses.edge_url + path, content=body, headers=headers, timeout=20)
    assert response.status_code == 200
    told = response.headers.get("grpc-status") or response.content.decode("latin-1")
    assert told == "5" or "grpc-status:5" in told.replace(" ", "")
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "grpc-status" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize(("body", "wanted"), [(b"AAAAAAA=", "0"), (b"AAAAAAA", ""), (b"%%%", "")])
def test_str_11_grpc_web_text_framing(triton_stack: Stack, body: bytes, wanted: str) -> None:
    url = f"{triton_stack.addresses.edge_url}/inference.GRPCInferenceService/ServerLive"
    response = httpx.post(url, content=body, headers={"content-type": "application/grpc-web-text", "x-grpc-web": "1"}, timeout=5)
    if wanted:
        assert response.status_code == 200
        assert response.content
    else:
        assert response.status_code == 400 or response.headers["grpc-status"] in ("3", "13")


async def made(example_repository: Path, request_id: str) -> int:
    """How far ``count`` came with a request that has ended, within five seconds."""
    note = example_repository / "count" / "1" / f"made-{request_id}"
    for _ in range(100):
        if note.exists() and (text := note.read_text()):
            return int(text)
        await asyncio.sleep(0.05)
    raise AssertionError(f"the work of {request_id} was not freed")


@pytest.mark.parametrize("door", DOORS)
async def test_a_slow_reader_holds_back_its_own_stream_only(triton_stack: Stack, example_repository: Path, door: str) -> None:
    name = f"slow-{triton_stack.transport}-{door}"
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = tg_grpc.InferenceServiceStub(channel)
        slow = stub.Watch(tg.WatchRequest(request=counted(1_000_000, size=100_000, request_id=name)))
        await anext(aiter(slow))
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = tg_grpc.InferenceServiceStub(channel)
        slow = stub.Watch(tg.WatchRequest(request=counted(1_000_000, size=100_000, request_id=f"{name}-held")))
        await anext(aiter(slow))
        await asyncio.sleep(1.0)
        quick = stub.Watch(tg.WatchRequest(request=counted(300, request_id=f"{name}-quick")), timeout=20)
        assert len([answer async for answer in quick]) == 301
        slow.cancel()
        # 400 KB each: what the windows of HTTP/2, two proxies and a few queues hold, and not what a second could make.
        assert await made(example_repository, f"{name}-held") < 150


@pytest.mark.parametrize("door", DOORS)
async def test_a_reader_that_leaves_frees_its_work(triton_stack: Stack, example_repository: Path, door: str) -> None:
    name = f"left-{triton_stack.transport}-{door}"
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        requests = [tg.ConverseRequest(request=counted(1_000_000, request_id=name))]
        call = tg_grpc.InferenceServiceStub(channel).Converse(sent(requests, asyncio.Event()))
        answers = aiter(call)
        for _ in range(5):
            await anext(answers)
        call.cancel()
        assert await made(example_repository, name) > 0


@pytest.mark.parametrize("door", DOORS)
async def test_converse(triton_stack: Stack, door: str) -> None:
    requests = [row("id_fp32", n, str(n)) for n in range(50)] + [row("nope", 1, "bad"), counted(3, request_id="many")]
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        call = tg_grpc.InferenceServiceStub(channel).Converse(sent([tg.ConverseRequest(request=item) for item in requests]), timeout=20)
        answers = [answer async for answer in call]
    ordered = [answer for answer in answers if answer.outcome.id != "many"]
    assert [answer.outcome.id for answer in ordered] == [*map(str, range(50)), "bad"]
    assert [answer.outcome.response.outputs[0].float_values[0] for answer in ordered[:-1]] == list(range(50))
    assert ordered[-1].outcome.code == 5
    assert all(answer.final for answer in ordered)
    assert [answer.final for answer in answers if answer.outcome.id == "many"] == [False, False, False, True]


@pytest.mark.parametrize("door", DOORS)
async def test_predict_many(triton_stack: Stack, door: str) -> None:
    requests = [row("id_fp32", 1, "a"), row("nope", 1, "b"), row("slow", 2, "c"), repeated([7, 8], request_id="d")]
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = tg_grpc.InferenceServiceStub(channel)
        answer = await stub.PredictMany(sent([tg.PredictManyRequest(request=item) for item in requests]), timeout=20)
        nothing = await stub.PredictMany(sent([]), timeout=20)
    assert [(item.id, item.code) for item in answer.outcomes] == [("a", 0), ("b", 5), ("c", 0), ("d", 0)]
    assert (answer.succeeded, answer.failed) == (3, 1)
    assert list(answer.outcomes[3].response.outputs[0].int_values) == [8], "the last answer of a decoupled model"
    assert nothing == tg.PredictManyResponse()


def test_predict_many_over_rest(triton_stack: Stack) -> None:
    item = {"model": "id_fp32", "inputs": [{"name": "X", "shape": [1, 1], "float_values": [3]}]}
    response = httpx.post(f"{triton_stack.addresses.edge_url}/v1/predict:many", json=[{"request": item}, {"request": {"model": "nope"}}])
    assert response.status_code == 200
    assert (response.json()["succeeded"], response.json()["failed"]) == (1, 1)


def test_generate(triton_stack: Stack) -> None:
    models = f"{triton_stack.addresses.edge_url}/v2/models"
    answer = httpx.post(f"{models}/id_fp32/generate", json={"id": "7", "X": [1, 2.5], "temperature": 0.5, "parameters": {"top": 3}})
    assert answer.json() == {"model_name": "id_fp32", "model_version": "1", "id": "7", "Y": [1.0, 2.5]}
    assert httpx.post(f"{models}/simple_identity/versions/1/generate", json={"INPUT0": "text"}).json()["OUTPUT0"] == "text"
    one = {"IN": [4], "DELAY": [0], "WAIT": 0}
    assert httpx.post(f"{models}/repeat_int32/generate", json=one).json()["OUT"] == 4
    for values in ([], [1, 2]):
        refused = httpx.post(f"{models}/repeat_int32/generate", json={"IN": values, "DELAY": [0] * len(values), "WAIT": 0})
        assert refused.status_code == 400
        assert "exactly 1 answer" in refused.json()["error"]
    for body, wanted in (({"X": "one"}, "'X'"), ({"Z": [1]}, "'Z' is no input"), ({"X": [1], "parameters": {"X": [1]}}, "twice")):
        refused = httpx.post(f"{models}/id_fp32/generate", json=body)
        assert refused.status_code == 400
        assert wanted in refused.json()["error"]


def test_generate_stream(triton_stack: Stack) -> None:
    models = f"{triton_stack.addresses.edge_url}/v2/models"
    began, times = time.monotonic(), []
    body = {"IN": [4, 5, 6], "DELAY": [400, 400, 400], "WAIT": 0}
    with httpx.stream("POST", f"{models}/repeat_int32/generate_stream", json=body, timeout=20) as response:
        events = []
        for piece in response.iter_raw():
            times.append(time.monotonic() - began)
            events += [json.loads(line.removeprefix(b"data: ")) for line in piece.splitlines() if line]
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [event["OUT"] for event in events] == [4, 5, 6]
    assert times[0] < 0.75 < times[1]
    failed = httpx.post(f"{models}/count/generate_stream", json={"N": [5, 2, 1]}, timeout=20)
    assert failed.status_code == 200
    assert "RuntimeError: the model tired" in json.loads(failed.content.splitlines()[-2].removeprefix(b"data: "))["error"]
    assert httpx.post(f"{models}/nope/generate_stream", json={}).status_code == 404
    nothing = httpx.post(f"{models}/repeat_int32/generate_stream", json={"IN": [], "DELAY": [], "WAIT": 0})
    assert (nothing.status_code, nothing.content) == (200, b"")


@pytest.mark.parametrize("door", DOORS)
async def test_the_parameter_timeout_bounds_the_wait_and_not_the_run(triton_stack: Stack, door: str) -> None:
    async with grpc.aio.insecure_channel(target(triton_stack, door)) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        alone = infer("slow_unbatched", [1], "runs")
        alone.parameters["timeout"].int64_param = 100_000  # It runs for 300 ms.
        assert number_of(await stub.ModelInfer(alone, timeout=10)) == 1
        running = asyncio.ensure_future(stub.ModelInfer(infer("slow_unbatched", [2], ""), timeout=10))
        await asyncio.sleep(0.1)
        waiting = infer("slow_unbatched", [3], "waits")
        waiting.parameters["timeout"].int64_param = 50_000
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(waiting, timeout=10)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not running.done()
        await running
