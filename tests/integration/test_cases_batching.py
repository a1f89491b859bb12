"""Collected bug reports about batching (BAT-*), replayed at the doors: callers who meet in one batch do not notice one another, and the
queue holds what it says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, TypeVar

import grpc
import httpx
import numpy as np
import pytest

from core_grpc.types import Datatype
from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc
from tests.support.doors import TIMEOUT_S, values_from_raw
from tests.support.meeting_models import MEETING_ROWS, Gate, write_meeting_models
from tests.support.models import write_addsub_i32, write_id, write_nonzero
from tests.support.rest import post_binary, post_v2
from tests.support.stack import TRANSPORTS, Stack, running_stack
from tests.support.wire import GRPC_DOORS, INVALID_ARGUMENT, WireAnswer, infer, rest_error

INTERNAL = 13
DOORS = (*GRPC_DOORS, "json", "binary")
TURNS = 2
"""Each caller has its content at another door."""
CYCLES = 10
PATIENCE_S = 0.3
"""How long callers wait who do not wait for an answer."""
NUMBERS = count(1)
"""Gates are opened by a number, each once."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Meeting:
    """A running gateway, and its models that run for as long as a test wants."""

    stack: Stack
    shallow: Gate
    """One instance, and room for two in its queue."""
    deep: Gate
    """One instance."""
    pair: Gate
    """Two instances, and room for ten in its queue."""

    def stats(self, model: str) -> dict[str, Any]:
        """The model's statistics."""
        (found,) = self.stack.get(f"/v2/models/{model}/stats").json()["model_stats"]
        return dict(found)

    def batches(self, model: str) -> dict[int, int]:
        """How many batches of which rows ran."""
        return {item["batch_size"]: item["compute_infer"]["count"] for item in self.stats(model)["batch_stats"]}


@pytest.fixture(scope="module", params=TRANSPORTS)
def met(request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meeting]:
    repository = tmp_path_factory.mktemp("models")
    write_meeting_models(repository)
    write_id(repository, Datatype.FP32, "max_batch_size = 8\n")
    write_addsub_i32(repository)
    write_nonzero(repository)
    gates = [Gate(repository, "shallow", 1, 2), Gate(repository, "deep", 1, 100), Gate(repository, "pair", 2, 10)]
    with running_stack(free_port, request.param, repository) as stack:
        yield Meeting(stack, *gates)


def at_once(call: Callable[[Any], Result], given: Iterable[Any]) -> list[Result]:
    items = list(given)
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(call, items))


@dataclass(frozen=True)
class Answered:
    """The first output of an answer, or the text of a failure."""

    shape: list[int]
    values: list[Any]
    text: str = ""
    is_callers_fault: bool = False


def ask(stack: Stack, door: str, model: str, tensor: tuple[str, str, Sequence[int]], raw: bytes) -> Answered:
    """One tensor through one of ``DOORS``."""
    name, datatype, shape = tensor
    if door == "json":
        values = values_from_raw(datatype, raw).tolist()
        return _rest_answer(post_v2(stack, model, [(name, datatype, shape, [v.decode() if isinstance(v, bytes) else v for v in values])]))
    if door == "binary":
        wanted = {"binary_data_output": True}
        return _rest_answer(post_binary(stack, model, [(name, datatype, shape, raw)], parameters=wanted))
    return _grpc_answer(_by_grpc(stack, door, model, tensor, raw))


def _by_grpc(stack: Stack, door: str, model: str, tensor: tuple[str, str, Sequence[int]], raw: bytes) -> WireAnswer:
    name, datatype, shape = tensor
    inputs = [{"name": name, "datatype": datatype, "shape": shape}]
    return infer(stack.addresses, door, pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=[raw]))


def _grpc_answer(answer: WireAnswer) -> Answered:
    if answer.code:
        assert answer.text
        assert answer.code in (INTERNAL, INVALID_ARGUMENT)
        return Answered([], [], answer.text, answer.code == INVALID_ARGUMENT)
    response = answer.infer_response()
    (output,) = response.outputs
    return Answered(list(output.shape), values_from_raw(output.datatype, response.raw_output_contents[0]).tolist())


def _rest_answer(reply: httpx.Response) -> Answered:
    if reply.status_code != 200:
        assert reply.status_code in (400, 500)
        return Answered([], [], rest_error(reply, reply.status_code), reply.status_code == 400)
    length = int(reply.headers.get("inference-header-content-length", len(reply.content)))
    (output,) = json.loads(reply.content[:length])["outputs"]
    values = output.get("data")
    if values is None:
        values = values_from_raw(output["datatype"], reply.content[length:]).tolist()
    return Answered(output["shape"], [v.encode() if isinstance(v, str) else v for v in values])


def test_bat_01_requests_of_different_shape_meet(met: Meeting) -> None:
    def call(number: int) -> None:
        array = np.full((1, 4 + number % 2 * 2), number, np.float32)
        answer = ask(met.stack, DOORS[number % 6], "meet_fp32", ("X", "FP32", array.shape), array.tobytes())
        assert (answer.shape, answer.values) == (list(array.shape), array.reshape(-1).tolist())

    at_once(call, range(2 * MEETING_ROWS))
    assert met.batches("meet_fp32") == {MEETING_ROWS: 2}


WANTED: Sequence[list[str]] = (["OUTPUT0"], ["OUTPUT1"], ["OUTPUT1", "OUTPUT0"], [])
LEFT = list(range(16))


def right_values(number: int) -> dict[str, list[int]]:
    return {"OUTPUT0": [value + number for value in LEFT], "OUTPUT1": [value - number for value in LEFT]}


def addsub_rest(met: Meeting, model: str, number: int, *, is_binary: bool, classes: int) -> dict[str, Any]:
    """What is answered of each output: values, or classes."""
    wanted = WANTED[number % len(WANTED)]
    inputs = [("INPUT0", "INT32", [1, 16], LEFT), ("INPUT1", "INT32", [1, 16], [number] * 16)]
    of_each: dict[str, Any] = {"binary_data": is_binary, **({"classification": classes} if classes else {})}
    asked: dict[str, Any] = {"outputs": [{"name": name, "parameters": of_each} for name in wanted]} if wanted else {}
    reply = post_v2(met.stack, model, inputs, id=f"id-{number}", parameters={"tag": number}, **asked)
    length = int(reply.headers.get("inference-header-content-length", len(reply.content)))
    answer = json.loads(reply.content[:length])
    assert answer["id"] == f"id-{number}"
    assert "tag" not in answer.get("parameters", {})
    assert [output["name"] for output in answer["outputs"]] == (wanted or ["OUTPUT0", "OUTPUT1"])
    got, rest = {}, reply.content[length:]
    for output in answer["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size", 0)
        assert bool(size) is (is_binary and bool(wanted))
        values = values_from_raw(output["datatype"], rest[:size]).tolist() if size else output["data"]
        got[output["name"]], rest = [v.decode() if isinstance(v, bytes) else v for v in values], rest[size:]
    assert not rest
    return got


def addsub_grpc(met: Meeting, model: str, number: int, door: str, *, classes: int) -> dict[str, Any]:
    wanted = WANTED[number % len(WANTED)]
    request = pb.ModelInferRequest(model_name=model, id=f"id-{number}")
    request.parameters["tag"].int64_param = number
    for name, values in (("INPUT0", LEFT), ("INPUT1", [number] * 16)):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(values)
    for name in wanted:
        output = request.outputs.add(name=name)
        if classes:
            output.parameters["classification"].int64_param = classes
    response = infer(met.stack.addresses, door, request).infer_response()
    assert (response.id, "tag" in response.parameters) == (f"id-{number}", False)
    assert [output.name for output in response.outputs] == (wanted or ["OUTPUT0", "OUTPUT1"])
    got = {}
    for made, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        got[made.name] = [v.decode() if isinstance(v, bytes) else v for v in values_from_raw(made.datatype, raw).tolist()]
    return got


def addsub(met: Meeting, model: str, number: int) -> dict[str, Any]:
    """Through a door that the number chooses; two of eight ask for the best class."""
    classes = 1 if number % 8 in (1, 6) else 0
    door = DOORS[number % 6]
    if door in GRPC_DOORS:
        return addsub_grpc(met, model, number, door, classes=classes)
    return addsub_rest(met, model, number, is_binary=door == "binary", classes=classes)


def test_bat_03_each_gets_the_outputs_the_form_and_the_id_it_asked_for(met: Meeting) -> None:
    numbers = range(3 * MEETING_ROWS)
    together = at_once(lambda number: addsub(met, "meet_addsub", number), numbers)
    assert met.batches("meet_addsub") == {MEETING_ROWS: 3}
    for number, got in zip(numbers, together, strict=True):
        assert got == addsub(met, "addsub_i32", number), "as alone"
        right: dict[str, Any] = dict(right_values(number))
        if number % 8 in (1, 6) and WANTED[number % len(WANTED)]:
            right = {name: [f"{max(values)}:{values.index(max(values))}"] for name, values in right.items()}
        assert got == {name: right[name] for name in got}


def test_bat_04_one_member_fails_and_the_others_do_not(met: Meeting) -> None:
    for turn in range(TURNS):
        before = met.stats("gather")["execution_count"]

        def call(index: int, turn: int = turn) -> Answered:
            door = DOORS[(index + turn) % len(DOORS)]
            if index == 7:
                # It is refused before it enters the batch, which is full without it.
                return _grpc_answer(_by_grpc(met.stack, "node", "gather", ("I", "INT64", (1, 1)), b"\7\0\0"))
            return ask(met.stack, door, "gather", ("I", "INT64", (1, 1)), index.to_bytes(8, "little"))

        answers = at_once(call, [*range(8), 99])
        assert [answer.values for answer in answers[:7]] == [[10.0 * index] for index in range(7)]
        assert answers[7].is_callers_fault
        assert answers[8].text
        # Each ran again alone.
        assert met.stats("gather")["execution_count"] - before == 7


@pytest.mark.parametrize("rows", [9, 1000])
def test_bat_05_a_batch_above_the_maximum_is_refused_and_says_so(met: Meeting, rows: int) -> None:
    before = met.stats("id_fp32")["execution_count"]
    for door in DOORS:
        answer = ask(met.stack, door, "id_fp32", ("X", "FP32", (rows, 1)), np.ones(rows, np.float32).tobytes())
        assert answer.is_callers_fault
        assert f"batch {rows}" in answer.text
        assert "max 8" in answer.text
    assert met.stats("id_fp32")["execution_count"] == before
    for door in DOORS:
        assert ask(met.stack, door, "id_fp32", ("X", "FP32", (8, 1)), np.ones(8, np.float32).tobytes()).values == [1.0] * 8


@pytest.mark.parametrize("door", DOORS)
def test_bat_05_a_leading_dimension_that_the_model_does_not_have(met: Meeting, door: str) -> None:
    answer = ask(met.stack, door, "nonzero", ("X", "FP32", (1, 4)), np.ones(4, np.float32).tobytes())
    assert answer.is_callers_fault
    assert "'X'" in answer.text


Ask = Callable[[str, int, str, float | None], Coroutine[Any, Any, str]]
"""Model, the number that opens its gate, an id, and a deadline in seconds: the name of the status that comes."""


class Callers:
    """Callers who may leave, by native gRPC on the node and by REST through the edge."""

    def __init__(self, stack: Stack) -> None:
        self._channel = grpc.aio.insecure_channel(stack.addresses.node_grpc)
        self._client = httpx.AsyncClient(base_url=stack.addresses.edge_url, limits=httpx.Limits(max_connections=None))

    async def __aenter__(self) -> Callers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        await self._client.aclose()

    async def grpc(self, model: str, number: int, request_id: str, deadline_s: float | None = None) -> str:
        request = pb.ModelInferRequest(model_name=model, id=request_id, inputs=[{"name": "X", "datatype": "FP32", "shape": [1, 1]}])
        request.inputs[0].contents.fp32_contents.append(number)
        try:
            response = await grpc_service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        assert (response.id, np.frombuffer(response.raw_output_contents[0], np.float32)[0]) == (request_id, number)
        return "OK"

    async def rest(self, model: str, number: int, request_id: str, deadline_s: float | None = None) -> str:
        headers = {} if deadline_s is None else {"grpc-timeout": f"{round(deadline_s * 1000)}m"}
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [number]}
        body = {"id": request_id, "inputs": [tensor]}
        reply = await self._client.post(f"/v2/models/{model}/infer", json=body, headers=headers, timeout=4 * TIMEOUT_S)
        if reply.status_code == 200:
            assert (reply.json()["id"], reply.json()["outputs"][0]["data"]) == (request_id, [number])
        else:
            assert reply.json()["error"]
        return {200: "OK", 429: "RESOURCE_EXHAUSTED", 504: "DEADLINE_EXCEEDED"}[reply.status_code]


async def failures(met: Meeting, model: str, wanted: int) -> None:
    """Waits until the server knows of so many requests that have no answer."""
    while (await asyncio.to_thread(met.stats, model))["inference_stats"]["fail"]["count"] != wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # It is another process that counts: nobody here is told.


async def all_ended(met: Meeting, model: str, of: int) -> None:
    """Waits until ``of`` executions are over: one that nobody waits for any more still holds its instance until it ends."""
    while (await asyncio.to_thread(met.stats, model))["execution_count"] != of:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("door", ["grpc", "rest"])
async def test_bat_06_the_queues_limit_counts_exactly(met: Meeting, door: str) -> None:
    number = next(NUMBERS)
    async with Callers(met.stack) as callers:
        call: Ask = getattr(callers, door)
        running = asyncio.ensure_future(call("shallow", number, f"{number}-a", None))
        await met.shallow.has_begun(1, f"{number}-")
        others = [asyncio.ensure_future(call("shallow", number, f"{number}-{i}", None)) for i in range(5)]
        assert [await refused for refused in islice(asyncio.as_completed(others), 3)] == ["RESOURCE_EXHAUSTED"] * 3
        met.shallow.open(number)
        assert await running == "OK"
        assert sorted(await asyncio.gather(*others)) == ["OK"] * 2 + ["RESOURCE_EXHAUSTED"] * 3
        assert await call("shallow", number, f"{number}-z", None) == "OK"


async def test_bat_08_what_nobody_waits_for_does_not_run(met: Meeting) -> None:
    number = next(NUMBERS)
    before = await asyncio.to_thread(met.stats, "deep")
    async with Callers(met.stack) as callers:
        running = asyncio.ensure_future(callers.grpc("deep", number, f"{number}-a"))
        await met.deep.has_begun(1, f"{number}-")
        late = [call("deep", number, f"{number}-{i}", PATIENCE_S) for i in range(5) for call in (callers.grpc, callers.rest)]
        leaving = [asyncio.wait_for(call("deep", number, f"{number}-left", None), PATIENCE_S) for call in (callers.grpc, callers.rest)]
        ends = await asyncio.gather(*late, *leaving, return_exceptions=True)
        assert ends[:10] == ["DEADLINE_EXCEEDED"] * 10
        assert [type(end) for end in ends[10:]] == [TimeoutError] * 2
        await failures(met, "deep", before["inference_stats"]["fail"]["count"] + 12)
        met.deep.open(number)
        assert await running == "OK"
    after = await asyncio.to_thread(met.stats, "deep")
    assert after["execution_count"] - before["execution_count"] == 1
    assert {request_id for request_id in met.deep.begun() if request_id.startswith(f"{number}-")} == {f"{number}-a"}


async def test_bat_09_who_leaves_gives_back_one_place(met: Meeting) -> None:
    dice = random.Random(9)
    before = await asyncio.to_thread(met.stats, "pair")
    failed, idle = before["inference_stats"]["fail"]["count"], before["execution_count"] - len(met.pair.begun())
    async with Callers(met.stack) as callers:

        async def thirteen(number: int) -> set[asyncio.Task[str]]:
            """Two run, ten wait, and one is refused, which tells that the others are in; those."""
            calls = [asyncio.create_task((callers.grpc, callers.rest)[i % 2]("pair", number, f"{number}-{i}", None)) for i in range(13)]
            done, inside = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S)
            assert [call.result() for call in done] == ["RESOURCE_EXHAUSTED"]
            return inside

        for _ in range(CYCLES):
            number = next(NUMBERS)
            inside = await thirteen(number)
            leaving = dice.sample(sorted(inside, key=id), 10)
            for call in leaving:
                call.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            failed += 11
            await failures(met, "pair", failed)
            met.pair.open(number)
            assert await asyncio.gather(*inside.difference(leaving)) == ["OK"] * 2
            await all_ended(met, "pair", idle + len(met.pair.begun()))
        number = next(NUMBERS)
        inside = await thirteen(number)
        assert len(await met.pair.has_begun(2, f"{number}-")) == 2
        met.pair.open(number)
        assert await asyncio.gather(*inside) == ["OK"] * 12


@pytest.mark.parametrize("doors", [("node", "web", "json"), ("edge", "web text", "binary")])
def test_bat_11_a_model_without_a_batch_dimension_in_its_output(met: Meeting, doors: Sequence[str]) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    answers = at_once(lambda i: ask(met.stack, doors[i], "nobatch", ("X", "FP32", (1, 4)), rows[i].tobytes()), range(3))
    for answer in answers:
        assert (answer.values, answer.is_callers_fault) == ([], False)
        assert "batch" in answer.text
    for door in doors:
        together = ask(met.stack, door, "nobatch", ("X", "FP32", (3, 4)), rows.tobytes())
        assert (together.values, together.is_callers_fault) == ([], False)
        assert "batch" in together.text


def test_bat_14_strings_of_different_length_in_a_batch(met: Meeting) -> None:
    lengths = [0, 1, 2, 1000, 65536, 3, 0, 7]
    assert len(lengths) == MEETING_ROWS
    for turn in range(TURNS):

        def call(number: int, turn: int = turn) -> None:
            text = bytes([65 + number]) * lengths[number]
            raw = len(text).to_bytes(4, "little") + text
            answer = ask(met.stack, DOORS[(number + turn) % len(DOORS)], "meet_bytes", ("X", "BYTES", (1, 1)), raw)
            assert (answer.shape, answer.values) == ([1, 1], [text])

        at_once(call, range(MEETING_ROWS))
    assert met.batches("meet_bytes") == {MEETING_ROWS: TURNS}
