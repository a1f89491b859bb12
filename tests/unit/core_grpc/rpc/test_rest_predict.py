"""``:predict`` bodies and answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.rpc.raw_tensors import bytes_array
from core_grpc.rpc.rest_predict import AnswerForm, PredictCall, decode_predict_body, encode_predict_response
from core_grpc.types import Datatype, InferRequest, ModelSpec, Tensor, TensorSpec
from tests.unit.core_grpc.rpc.rest_bodies import LIMITS, PADDING_BYTES, one_input, response, two_inputs

SIZES = pytest.mark.parametrize("padding", ["", " " * PADDING_BYTES], ids=["small", "large"])
IMAGES = one_input(shape=(-1, 3, 8, 8), accepts="image")
PHOTO = b"\x89PNG photo \xff"
B64 = {"b64": base64.b64encode(PHOTO).decode()}


def call(spec: ModelSpec, root: Any, padding: str = "") -> PredictCall:
    return decode_predict_body(spec, (json.dumps(root) + padding).encode(), LIMITS)


def values(spec: ModelSpec, root: Any, padding: str = "") -> Any:
    return call(spec, root, padding).request.inputs["X"].array.tolist()


def refusal(spec: ModelSpec, root: Any, padding: str = "") -> str:
    with pytest.raises(InvalidArgument) as caught:
        call(spec, root, padding)
    return caught.value.message


@SIZES
class TestInstances:
    def test_rows_of_the_only_input(self, padding: str) -> None:
        decoded = call(one_input(), {"instances": [[1, 2], [3, 4.5]], "signature_name": "serving_default"}, padding)
        tensor = decoded.request.inputs["X"]
        assert tensor.datatype is Datatype.FP32
        assert tensor.array.dtype == np.float32
        assert tensor.array.tolist() == [[1, 2], [3, 4.5]]
        assert decoded.form is AnswerForm.PREDICTIONS

    def test_rows_by_input_name(self, padding: str) -> None:
        inputs = call(two_inputs(), {"instances": [{"A": [1, 2], "B": [5, 6]}, {"B": [7, 8], "A": [3, 4]}]}, padding).request.inputs
        assert {name: item.array.tolist() for name, item in inputs.items()} == {"A": [[1, 2], [3, 4]], "B": [[5, 6], [7, 8]]}
        assert inputs["A"].array.dtype == np.int32

    def test_a_model_without_a_batch_dimension_takes_one(self, padding: str) -> None:
        spec = one_input(shape=(2,), max_batch_size=0)
        assert values(spec, {"instances": [[1, 2]]}, padding) == [1, 2]
        assert values(spec, {"instances": [{"X": [1, 2]}]}, padding) == [1, 2]
        assert "wanted one row, got 2" in refusal(spec, {"instances": [[1, 2], [3, 4]]}, padding)

    @pytest.mark.parametrize(
        ("instances", "wanted"),
        [
            ({}, "instances: wanted an array of rows, got an object"),
            ([], "instances is empty"),
            ([[1, 2], [3]], "input 'X' at [1]: ragged nesting"),
            ([[1, 2], 3], "input 'X' at [1]: ragged nesting"),
            ([[1, "2"]], "input 'X' at [0,1]: FP32 takes a number, got a string"),
            (
                [{"X": [1]}, {"X": [1, 2]}],
                "input 'X' in instances[1]: wanted what the first row has, FP32 of shape [1], got FP32 of shape [2]",
            ),
            ([{"X": [1]}, {"Z": [1]}], "instances[1] has the inputs 'Z', wanted those of the first row: 'X'"),
            ([{"Z": [1]}], "unexpected inference input 'Z' for model 'm': it takes 'X'"),
            ([{"X": [1]}, 5], "instances[1]: wanted an object, got 5"),
        ],
    )
    def test_rows_that_do_not_fit(self, padding: str, instances: Any, wanted: str) -> None:
        assert wanted in refusal(one_input(), {"instances": instances}, padding)

    def test_bare_rows_need_a_model_with_one_input(self, padding: str) -> None:
        assert "several inputs: wanted an object with 'A', 'B'" in refusal(two_inputs(), {"instances": [[1, 2]]}, padding)


@SIZES
class TestInputs:
    def test_by_name_and_bare(self, padding: str) -> None:
        for root in ({"inputs": {"X": [[1, 2]]}}, {"inputs": [[1, 2]]}):
            decoded = call(one_input(), root, padding)
            assert decoded.request.inputs["X"].array.tolist() == [[1, 2]]
            assert decoded.form is AnswerForm.OUTPUTS

    def test_the_batch_dimension_is_added_when_exactly_that_is_missing(self, padding: str) -> None:
        assert values(one_input(), {"inputs": [1, 2]}, padding) == [[1, 2]]
        assert values(one_input(), {"inputs": 1}, padding) == 1
        assert values(one_input(shape=(-1,)), {"inputs": {"X": 1}}, padding) == [1]
        assert values(one_input(shape=(2,), max_batch_size=0), {"inputs": [1, 2]}, padding) == [1, 2]

    def test_integers_stay_integers(self, padding: str) -> None:
        assert values(one_input("INT64"), {"inputs": [[9007199254740993]]}, padding) == [[9007199254740993]]
        assert "INT64 takes an integer" in refusal(one_input("INT64"), {"inputs": [[1.5]]}, padding)

    def test_bytes_are_strings_or_base64(self, padding: str) -> None:
        assert values(one_input("BYTES"), {"inputs": [["é", B64]]}, padding) == [["é".encode(), PHOTO]]
        assert values(one_input("BYTES", (-1,)), {"inputs": B64}, padding) == [PHOTO]

    @pytest.mark.parametrize("value", [{"b64": "!!"}, {"b64": "YQ"}, {"b64": "YQ=\n="}, {"b64": 5}, {"b64": "YQ==", "x": 1}, {"c": 1}])
    def test_what_is_not_base64(self, padding: str, value: Any) -> None:
        assert "input 'X'" in refusal(one_input("BYTES"), {"inputs": {"X": [[value]]}}, padding)

    def test_an_unknown_name(self, padding: str) -> None:
        assert "unexpected inference input 'Z'" in refusal(one_input(), {"inputs": {"Z": 1}}, padding)
        assert "several inputs" in refusal(two_inputs(), {"inputs": [1]}, padding)


@SIZES
class TestImages:
    @pytest.mark.parametrize(
        "root",
        [
            {"instances": [B64]},
            {"instances": [[B64]]},
            {"instances": [{"X": B64}]},
            {"inputs": B64},
            {"inputs": {"X": B64}},
            {"inputs": [[B64]]},
        ],
    )
    def test_one_image(self, padding: str, root: Any) -> None:
        tensor = call(IMAGES, root, padding).request.inputs["X"]
        assert (tensor.datatype, tensor.array.shape, tensor.array[0, 0]) == ("BYTES", (1, 1), PHOTO)

    def test_several(self, padding: str) -> None:
        for root in ({"instances": [B64, B64]}, {"instances": [{"X": B64}, {"X": B64}]}, {"inputs": {"X": [B64, B64]}}):
            assert values(IMAGES, root, padding) == [[PHOTO], [PHOTO]]

    def test_numbers_are_still_numbers(self, padding: str) -> None:
        row = np.zeros((3, 8, 8)).tolist()
        assert call(IMAGES, {"instances": [row]}, padding).request.inputs["X"].array.shape == (1, 3, 8, 8)

    def test_a_plain_string_is_refused_with_advice(self, padding: str) -> None:
        assert 'takes an encoded image as {"b64": "…"}' in refusal(IMAGES, {"inputs": B64["b64"]}, padding)

    def test_rows_of_both_kinds(self, padding: str) -> None:
        assert "in instances[1]" in refusal(IMAGES, {"instances": [{"X": B64}, {"X": [[[1]]]}]}, padding)


@pytest.mark.parametrize(
    ("root", "wanted"),
    [
        ({}, "wanted either instances (rows) or inputs (whole tensors), got neither"),
        ({"instances": [1], "inputs": 1}, "got both"),
        ({"instances": [1], "foo": 1}, "unknown field 'foo'"),
        ({"inputs": 1, "signature_name": "other"}, "signature_name: wanted 'serving_default'"),
        ({"inputs": 1, "top_k": 1.5}, "top_k: wanted an integer"),
        ({"inputs": 1, "top_k": -2}, "got -2"),
        ({"inputs": 1, "top_k": True}, "got true"),
        ({"inputs": 1, "outputs": "Y"}, "outputs: wanted an array, got a string"),
        ({"inputs": 1, "outputs": [1]}, "outputs: wanted a string, got 1"),
        ({"inputs": [[1]] * 2 + [["x" * 5]]}, "at [2,0]: FP32 takes a number, got a string"),
        ({"inputs": None}, "at []: FP32 takes a number, got null"),
    ],
)
def test_bodies_that_are_none(root: Any, wanted: str) -> None:
    message = refusal(one_input(), root)
    assert wanted in message
    assert "xxxxx" not in message


def test_deep_values_end_in_an_error_and_not_in_a_crash() -> None:
    deep = b'{"inputs": ' + b"[" * 900 + b'{"b64": "YQ=="}' + b"]" * 900 + b"}"
    with pytest.raises(InvalidArgument, match="deep"):
        decode_predict_body(one_input("BYTES"), deep, LIMITS)


def answered(spec: ModelSpec, form: AnswerForm, shown: tuple[str, ...] | None = None, top_k: int = 0, **outputs: Tensor) -> Any:
    body = encode_predict_response(spec, response(**outputs), PredictCall(InferRequest("m", "1", {}), form, top_k, shown))
    assert body.content_type == "application/json"
    answer = json.loads(body.data)
    assert (answer.pop("model"), answer.pop("version")) == ("m", "1")
    assert answer.pop("timing_ms") == {"preprocess": 1.0, "queue": 2.0, "compute": 3.0}
    return answer


def floats(values: Any) -> Tensor:
    return Tensor(Datatype.FP32, np.array(values, np.float32))


class TestAnswers:
    def test_predictions_of_one_output(self) -> None:
        assert answered(one_input(), AnswerForm.PREDICTIONS, Y=floats([[1, 2], [3, 4]])) == {"predictions": [[1, 2], [3, 4]]}

    def test_predictions_of_several(self) -> None:
        got = answered(two_inputs(), AnswerForm.PREDICTIONS, C=floats([[1], [2]]), D=floats([3, 4]))
        assert got == {"predictions": [{"C": [1], "D": 3}, {"C": [2], "D": 4}]}

    def test_predictions_without_a_batch_dimension(self) -> None:
        spec = one_input(shape=(2,), max_batch_size=0)
        assert answered(spec, AnswerForm.PREDICTIONS, Y=floats([1, 2])) == {"predictions": [[1, 2]]}
        assert answered(spec, AnswerForm.PREDICTIONS, Y=floats(7), Z=floats([8])) == {"predictions": [{"Y": 7, "Z": [8]}]}

    def test_outputs_are_nested(self) -> None:
        text = Tensor(Datatype.BYTES, bytes_array(["é".encode(), PHOTO], (1, 2)))
        got = answered(two_inputs(), AnswerForm.OUTPUTS, C=floats([[1, 2]]), D=text)
        assert got == {"outputs": {"C": [[1, 2]], "D": [["é", B64]]}}

    def test_numbers_that_are_not_finite(self) -> None:
        got = answered(two_inputs(), AnswerForm.PREDICTIONS, C=floats([[np.nan]]), D=floats([np.inf]))
        assert repr(got) == "{'predictions': [{'C': [nan], 'D': inf}]}"
        got = answered(one_input(), AnswerForm.OUTPUTS, Y=floats([[[1, -np.inf], [np.nan, 2]]]))
        assert repr(got) == "{'outputs': {'Y': [[[1.0, -inf], [nan, 2.0]]]}}"

    def test_classes_of_labelled_outputs(self) -> None:
        spec = one_input(labels=("cat", "dog", "owl"))
        got = answered(spec, AnswerForm.OUTPUTS, shown=(), top_k=2, Y=floats([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]]))
        assert got == {
            "classes": [
                [{"label": "dog", "index": 1, "score": 0.7}, {"label": "owl", "index": 2, "score": 0.2}],
                [{"label": "cat", "index": 0, "score": 0.5}, {"label": "dog", "index": 1, "score": 0.25}],
            ]
        }
        assert len(answered(spec, AnswerForm.OUTPUTS, Y=floats([[1, 2, 3]]))["classes"][0]) == 3
        assert "classes" not in answered(spec, AnswerForm.OUTPUTS, top_k=-1, Y=floats([[1, 2, 3]]))

    def test_wanted_outputs_reach_the_request(self) -> None:
        assert [output.name for output in call(two_inputs(), {"inputs": {}, "outputs": ["D", "C"]}).request.outputs] == ["D", "C"]


def test_an_input_that_is_named_b64() -> None:
    spec = ModelSpec("m", "1", "identity", 8, (TensorSpec("b64", Datatype.FP32, (-1, 1)),), ())
    assert call(spec, {"inputs": {"b64": [[1]]}}).request.inputs["b64"].array.tolist() == [[1]]
