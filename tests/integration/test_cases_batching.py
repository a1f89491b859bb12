"""Collected bug reports about batching (BAT-*), replayed at the doors: callers who meet in one batch do not notice one another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from tests.support.rest import post_v2
from tests.support.stack import Stack
from tests.support.wire import GRPC_DOORS, INVALID_ARGUMENT, WireAnswer, infer, rest_error

INTERNAL = 13
Result = TypeVar("Result")


def at_once(call: Callable[[Any], Result], given: Iterable[Any]) -> list[Result]:
    items = list(given)
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(call, items))


def ask(stack: Stack, number: int, model: str, tensor: tuple[str, str, tuple[int, ...]], raw: bytes) -> WireAnswer:
    """One tensor, through a door that the caller's number chooses."""
    name, datatype, shape = tensor
    inputs = [{"name": name, "datatype": datatype, "shape": shape}]
    return infer(stack.addresses, GRPC_DOORS[number % 4], pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=[raw]))


def test_bat_01_requests_of_different_shape_meet(stack: Stack) -> None:
    def call(number: int) -> None:
        array = np.full((1, 4 + number % 2 * 2), number, np.float32)
        response = ask(stack, number, "delayed_fp32", ("X", "FP32", array.shape), array.tobytes()).infer_response()
        assert tuple(response.outputs[0].shape) == array.shape
        assert response.raw_output_contents[0] == array.tobytes()

    at_once(call, range(16))


def test_bat_03_each_gets_the_outputs_the_form_and_the_id_it_asked_for(stack: Stack) -> None:
    values = list(range(16))

    def call(number: int) -> None:
        wanted = [["OUTPUT0"], ["OUTPUT1"], ["OUTPUT1", "OUTPUT0"]][number % 3]
        inputs = [("INPUT0", "INT32", [1, 16], values), ("INPUT1", "INT32", [1, 16], [number] * 16)]
        outputs = [{"name": name, "parameters": {"binary_data": number % 2 == 1}} for name in wanted]
        reply = post_v2(stack, "addsub_i32", inputs, outputs=outputs, id=f"id-{number}", parameters={"tag": number})
        length = int(reply.headers.get("inference-header-content-length", len(reply.content)))
        answer = json.loads(reply.content[:length])
        assert answer["id"] == f"id-{number}"
        assert "tag" not in answer.get("parameters", {})
        assert [output["name"] for output in answer["outputs"]] == wanted
        right = {"OUTPUT0": [value + number for value in values], "OUTPUT1": [value - number for value in values]}
        rest = reply.content[length:]
        for output in answer["outputs"]:
            got = output.get("data")
            if number % 2:
                got, rest = np.frombuffer(rest[:64], np.int32).tolist(), rest[64:]
            assert got == right[output["name"]]
        assert not rest

    at_once(call, range(12))


def test_bat_04_one_member_fails_and_the_others_do_not(stack: Stack) -> None:
    def call(index: int) -> WireAnswer:
        return ask(stack, index, "gather", ("I", "INT64", (1, 1)), index.to_bytes(8, "little")[: 3 if index == 7 else 8])

    answers = at_once(call, [*range(8), 99])
    for index in range(7):
        assert np.frombuffer(answers[index].infer_response().raw_output_contents[0], np.float32).tolist() == [10.0 * index]
    assert answers[7].code == INVALID_ARGUMENT
    assert answers[8].code in (INVALID_ARGUMENT, INTERNAL)
    assert answers[8].text


@pytest.mark.parametrize("count", [9, 1000])
def test_bat_05_a_batch_above_the_maximum_is_refused_and_says_so(stack: Stack, count: int) -> None:
    text = rest_error(post_v2(stack, "id_fp32", [("X", "FP32", [count, 1], [1] * count)]), 400)
    assert f"batch {count}" in text
    assert "max 8" in text
    assert post_v2(stack, "id_fp32", [("X", "FP32", [8, 1], [1] * 8)]).status_code == 200


def test_bat_05_a_leading_dimension_that_the_model_does_not_have(stack: Stack) -> None:
    assert "'X'" in rest_error(post_v2(stack, "nonzero", [("X", "FP32", [1, 4], [1] * 4)]), 400)


def test_bat_11_a_model_without_a_batch_dimension_in_its_output(stack: Stack) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    answers = at_once(lambda number: ask(stack, number, "nobatch", ("X", "FP32", (1, 4)), rows[number].tobytes()), range(3))
    # Alone in its batch, a row is its own sum and right; whoever met others must be told that it failed.
    for number, answer in enumerate(answers):
        assert answer.code == INTERNAL or answer.infer_response().raw_output_contents[0] == rows[number].tobytes()
    for number in range(4):
        together = ask(stack, number, "nobatch", ("X", "FP32", (3, 4)), rows.tobytes())
        assert together.code == INTERNAL
        assert "batch" in together.text


def test_bat_14_strings_of_different_length_in_a_batch(stack: Stack) -> None:
    def call(item: tuple[int, int]) -> None:
        number, length = item
        raw = length.to_bytes(4, "little") + bytes([65 + number]) * length
        response = ask(stack, number, "delayed_bytes", ("X", "BYTES", (1, 1)), raw).infer_response()
        assert response.raw_output_contents[0] == raw

    at_once(call, enumerate([0, 1, 2, 1000, 65536, 3, 0, 7]))
