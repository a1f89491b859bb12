"""``POST /predict`` against a real gRPC server."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import grpc
import httpx
import pytest

from protos.tensorgate.v1 import inference_pb2 as pb
from tests.unit.rest_facade.conftest import Connect, Core, error_of, model


async def predict(facade: httpx.AsyncClient, **body: Any) -> Any:
    response = await facade.post("/predict", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_nested_numbers_come_back_nested(facade: httpx.AsyncClient) -> None:
    answer = await predict(facade, input=[[1, 2.5, 0.1, -4]], model="echo")
    assert answer == {"output": [[1, 2.5, 0.1, -4]], "shape": [1, 4], "output_name": "y", "model": "echo", "version": "1"}


async def test_flat_numbers_take_the_given_shape(facade: httpx.AsyncClient, core: Core) -> None:
    answer = await predict(facade, input=[1, 2, 3, 4, 5, 6, 7, 8], shape=[2, 4])
    assert answer["output"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert list(core.requests[0].inputs[0].float_values) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_missing_batch_dimension_is_added(facade: httpx.AsyncClient) -> None:
    assert (await predict(facade, input=[1, 2, 3, 4]))["shape"] == [1, 4]


async def test_a_model_without_a_batch_gets_its_shape_as_it_is(facade: httpx.AsyncClient, core: Core) -> None:
    core.models["scalar"] = model("scalar", shape=(), max_batch_size=0)
    assert await predict(facade, input=7, model="scalar") == {
        "output": 7,
        "shape": [],
        "output_name": "y",
        "model": "scalar",
        "version": "1",
    }


async def test_no_model_asks_for_the_default(facade: httpx.AsyncClient) -> None:
    assert (await predict(facade, input=[[0, 0, 0, 0]]))["model"] == "echo"


async def test_version_and_output_are_handed_on(facade: httpx.AsyncClient, core: Core) -> None:
    await predict(facade, input=[[0, 0, 0, 0]], version="1", output="y")
    assert (core.requests[0].version, list(core.requests[0].outputs)) == ("1", ["y"])


async def test_integers_are_exact_beyond_two_to_the_53(facade: httpx.AsyncClient) -> None:
    values = [[9007199254740993, -9223372036854775808]]
    assert (await predict(facade, input=values, model="ints"))["output"] == values


async def test_booleans(facade: httpx.AsyncClient) -> None:
    assert (await predict(facade, input=[[True, False, True, True]], model="bools"))["output"] == [[True, False, True, True]]


async def test_classes_are_named(facade: httpx.AsyncClient, core: Core) -> None:
    core.classes = [pb.RowClasses(top=[pb.ClassScore(label="espresso", index=967, score=0.95)])]
    assert (await predict(facade, input=[[1, 2, 3, 4]]))["classes"] == [[{"label": "espresso", "index": 967, "score": 0.95}]]


async def test_what_is_not_finite_is_written_as_v2_writes_it(facade: httpx.AsyncClient) -> None:
    response = await facade.post("/predict", content=b'{"input": [[NaN, Infinity, -Infinity, 1]]}')
    assert response.text.startswith('{"output":[[NaN,Infinity,-Infinity,1.0]]')
    values = json.loads(response.text)["output"][0]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 1]


@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded", "application/octet-stream"])
async def test_the_body_is_json_whatever_it_is_called(facade: httpx.AsyncClient, content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = await facade.post("/predict", content=b'{"input": [[1, 2, 3, 4]]}', headers=headers)
    assert response.json()["output"] == [[1, 2, 3, 4]]


async def test_identity_and_trace_are_forwarded_and_nothing_else(facade: httpx.AsyncClient, core: Core) -> None:
    sent = {"authorization": "Bearer t", "x-api-key": "k", "x-request-id": "r", "traceparent": "00-1-2-01", "x-other": "no"}
    response = await facade.post("/predict", json={"input": [[1, 2, 3, 4]]}, headers=sent)
    assert response.status_code == 200
    assert {name: core.metadata.get(name) for name in sent} == {**sent, "x-other": None}


BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "body: "),
    ("not json", b"{'input': 1}", "body: "),
    ("png", b"\x89PNG\xff\xfe", "body: "),
    ("a list", b"[]", "body: "),
    ("null", b"null", "body: "),
    ("trailing", b'{"input": [[1,2,3,4]]} x', "body: "),
    ("deep", b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body: "),
    ("too many dimensions", b'{"input": ' + b"[" * 33 + b"1" + b"]" * 33 + b"}", "input: wanted at most 32 dimensions"),
    ("no input", b'{"model": "echo"}', "input: field required"),
    ("unknown field", b'{"input": 1, "imput": 2}', "'imput': no such field; wanted input, shape, model, version, output"),
    ("model of the wrong kind", b'{"input": 1, "model": 7}', "model: "),
    ("a negative dimension", b'{"input": [1], "shape": [-1]}', "shape[0]: "),
    ("a huge dimension", b'{"input": [1], "shape": [4294967296]}', "shape[0]: "),
    ("a string", b'{"input": "abc"}', "input: wanted a number, got a string"),
    ("a string inside", b'{"input": [[1, "2", 3, 4]]}', "input[0][1]: wanted a number, got a string"),
    ("null inside", b'{"input": [[1, null, 3, 4]]}', "input[0][1]: wanted a number, got null"),
    ("true inside", b'{"input": [[1, true, 3, 4]]}', "input[0][1]: wanted a number, got a boolean"),
    ("ragged", b'{"input": [[1, 2], [3]]}', "input[1]: wanted a list of 2, got a list of 1"),
    ("a number among lists", b'{"input": [[1, 2], 3]}', "input[1]: wanted a list of 2, got a number"),
    ("a list among numbers", b'{"input": [1, [2]]}', "input[1]: wanted a number, got a list of 1"),
    ("shape too small", b'{"input": [1,2,3], "shape": [1,2]}', "shape: [1, 2] has 2 elements, input has 3"),
    ("shape against the nesting", b'{"input": [[1,2],[3,4]], "shape": [4,1]}', "shape: wanted [2, 2]"),
    ("overflowing shape", b'{"input": [1], "shape": [2147483647, 2147483647, 2147483647]}', "shape: "),
    ("beyond FP32", b'{"input": [[1, 2, 1e39, 4]]}', "input[0][2]: wanted a number that FP32 holds"),
    ("a fraction", b'{"input": [[1, 1.5]], "model": "ints"}', "input[0][1]: wanted a number that INT64 holds"),
    ("beyond INT64", b'{"input": [[9223372036854775808, 1]], "model": "ints"}', "input[0][0]: wanted a number that INT64 holds"),
    ("NaN as an integer", b'{"input": [[NaN, 1]], "model": "ints"}', "input[0][0]: wanted a number that INT64 holds"),
    ("a number as a boolean", b'{"input": [[1, true, true, true]], "model": "bools"}', "input[0][0]: wanted true or false, got a number"),
]


@pytest.mark.parametrize(("body", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_bad_input_names_the_field_and_the_next_request_is_right(facade: httpx.AsyncClient, body: bytes, message: str) -> None:
    status, code, text = error_of(await facade.post("/predict", content=body))
    assert (status, code) == (400, 3)
    assert text.startswith(message)
    assert (await predict(facade, input=[[1, 2, 3, 4]]))["output"] == [[1, 2, 3, 4]]


async def test_an_error_quotes_a_name_safely(facade: httpx.AsyncClient) -> None:
    _, _, message = error_of(await facade.post("/predict", json={"input": 1, "é\n" + "x" * 5000: 1}))
    assert message.isascii()
    assert len(message) < 300


async def test_a_header_that_grpc_cannot_carry(facade: httpx.AsyncClient) -> None:
    response = await facade.post("/predict", json={"input": 1}, headers=[(b"x-request-id", b"\xe9")])
    assert error_of(response) == (400, 3, "header x-request-id: wanted printable ASCII")


async def test_models_that_do_not_fit_say_where_to_go(facade: httpx.AsyncClient, core: Core) -> None:
    core.models["text"] = model("text", "BYTES")
    two = core.models["two"] = model("two")
    two.inputs.add(name="z", datatype="FP32", shape=[-1])
    status, code, message = error_of(await facade.post("/predict", json={"input": 1, "model": "text"}))
    assert (status, code) == (400, 9)
    assert message == "model 'text': input 'x' is BYTES, /predict takes numbers: use POST /v1/models/text:predict"
    status, code, message = error_of(await facade.post("/predict", json={"input": 1, "model": "two"}))
    assert (status, code) == (400, 9)
    assert message == "model 'two' has 2 inputs (x, z), /predict takes one: use POST /v1/models/two:predict"


async def test_a_model_that_is_not_ready_says_why(facade: httpx.AsyncClient, core: Core) -> None:
    core.models["broken"] = model("broken", state=pb.MODEL_STATE_UNAVAILABLE, reason="model.onnx is no ONNX file")
    status, code, message = error_of(await facade.post("/predict", json={"input": 1, "model": "broken"}))
    assert (status, code, message) == (503, 14, "model 'broken' version 1 is not ready: model.onnx is no ONNX file")


async def test_a_body_above_the_limit_is_refused_before_it_is_read(connect: Connect) -> None:
    facade = await connect(max_body_bytes=1024)
    assert error_of(await facade.post("/predict", content=b" " * 1025)) == (
        413,
        8,
        "facade.max_body_bytes: the body is larger than 1024 bytes",
    )

    # The transport of this client collects the whole body first; a declared length is not needed for the refusal.
    async def long() -> Any:
        for _ in range(3):
            yield b" " * 1000

    assert error_of(await facade.post("/predict", content=long()))[0] == 413


async def test_a_compressed_body_is_refused_by_name(facade: httpx.AsyncClient) -> None:
    response = await facade.post("/predict", content=b"x", headers={"content-encoding": "gzip"})
    assert error_of(response) == (501, 12, "Content-Encoding 'gzip' is not offered: send the body as it is")


async def test_a_slow_core_ends_in_a_deadline(connect: Connect, core: Core) -> None:
    core.hold = asyncio.Event()
    facade = await connect(request_timeout_s=0.2)
    status, code, message = error_of(await facade.post("/predict", json={"input": [[1, 2, 3, 4]]}))
    assert (status, code, message) == (504, 4, "the core did not answer in time")


async def test_text_comes_back_as_strings(facade: httpx.AsyncClient, core: Core) -> None:
    core.output = pb.Tensor(datatype="BYTES", shape=[2, 1], bytes_values=["é".encode(), b""])
    assert (await predict(facade, input=[[1, 2, 3, 4]]))["output"] == [["é"], [""]]


async def test_text_that_is_not_utf8_is_refused_with_advice(facade: httpx.AsyncClient, core: Core) -> None:
    core.output = pb.Tensor(datatype="BYTES", shape=[1], bytes_values=[b"\xff"])
    status, _, message = error_of(await facade.post("/predict", json={"input": [[1, 2, 3, 4]]}))
    assert (status, message) == (400, "output 'y' is not text: use POST /v1/predict, which answers base64")


async def test_a_caller_who_leaves_stops_the_work(core: Core, connect: Connect) -> None:
    core.hold = asyncio.Event()
    facade = await connect()
    app = facade._transport.app  # type: ignore[attr-defined]
    gone = asyncio.Event()
    body = [{"type": "http.request", "body": b'{"input": [[1, 2, 3, 4]]}', "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/predict",
        "raw_path": b"/predict",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"localhost")],
        "server": ("127.0.0.1", 80),
        "client": None,
        "root_path": "",
    }
    call = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait_for(core.entered.wait(), 5)
    gone.set()
    await asyncio.wait_for(core.was_cancelled.wait(), 5)
    await asyncio.wait_for(call, 5)
    assert sent[0]["status"] == 499


STATUSES = [
    (grpc.StatusCode.INVALID_ARGUMENT, 400),
    (grpc.StatusCode.NOT_FOUND, 404),
    (grpc.StatusCode.ALREADY_EXISTS, 409),
    (grpc.StatusCode.PERMISSION_DENIED, 403),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    (grpc.StatusCode.FAILED_PRECONDITION, 400),
    (grpc.StatusCode.ABORTED, 409),
    (grpc.StatusCode.OUT_OF_RANGE, 400),
    (grpc.StatusCode.UNIMPLEMENTED, 501),
    (grpc.StatusCode.INTERNAL, 500),
    (grpc.StatusCode.UNAVAILABLE, 503),
    (grpc.StatusCode.DATA_LOSS, 500),
    (grpc.StatusCode.UNAUTHENTICATED, 401),
    (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    (grpc.StatusCode.CANCELLED, 499),
]


@pytest.mark.parametrize(("code", "http_status"), STATUSES, ids=lambda value: getattr(value, "name", None))
async def test_the_status_of_the_core_follows_the_canonical_table(
    facade: httpx.AsyncClient, core: Core, code: grpc.StatusCode, http_status: int
) -> None:
    core.failure = (code, "what the core says")
    response = await facade.post("/predict", json={"input": [[1, 2, 3, 4]]})
    assert error_of(response) == (http_status, code.value[0], "what the core says")


async def test_the_text_of_an_exception_in_the_core_does_not_leave(facade: httpx.AsyncClient, core: Core) -> None:
    core.failure = RuntimeError("secret")
    assert error_of(await facade.post("/predict", json={"input": [[1, 2, 3, 4]]})) == (500, 2, "internal error")


async def test_a_core_that_is_away_is_named_without_its_address(connect: Connect) -> None:
    facade = await connect(core_address="unix:/nowhere/core.sock")
    status, code, message = error_of(await facade.post("/predict", json={"input": 1}))
    assert (status, code, message) == (503, 14, "the core cannot be reached: it is starting, stopped or restarting")
