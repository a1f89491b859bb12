"""``POST /v1/models/{model}:predict``: the model's own words in, and an answer to match.

A request is one of::

    {"instances": [row, …]}                 rows as TF Serving takes them: each a nested value for a model with one input, or an
                                            object by input name
    {"inputs": {"name": value, …}}          whole tensors by input name; the batch dimension may be left out
    {"inputs": value}                       the same for a model with one input

with, optionally, ``"outputs": [names]``, ``"top_k": n`` and TF Serving's ``"signature_name"`` (only ``serving_default``). A value is a
number, a string, ``true``/``false``, or arrays of these, nested as its shape: there is no ``shape`` and no ``datatype``. BYTES elements
are strings or ``{"b64": "…"}``; an encoded image is always ``{"b64": "…"}``, one for each row. Uploads are in ``rest_upload.py``.

The answer::

    {"model": "m", "version": "1",
     "predictions": [row, …]                to instances: a value for each row, or an object by output name where there are several
     "outputs": {"name": nested, …}         to inputs; to uploads only the outputs that were asked for, or all where there are no labels
     "classes": [[{"label", "index", "score"}, …], …]   for each row the best top_k (5 when 0 or absent, none when -1) of the first
                                            answered output that has labels; absent where there is none
     "timing_ms": {"preprocess", "queue", "compute"}}

Numbers are written as in ``/v2`` (``rest_answers.py``); BYTES elements are strings, or ``{"b64": "…"}`` where they are not UTF-8.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import orjson

from core_grpc.errors import InvalidArgument
from core_grpc.rpc.classes import row_classes
from core_grpc.rpc.content_types import JSON_TYPE
from core_grpc.rpc.rest_answers import JsonFromArray, RestBody, json_from_array, json_from_array_with_tokens
from core_grpc.rpc.rest_json import JsonDocument, elements, kind_of, parse_document, refuse_unknown, text
from core_grpc.rpc.rest_values import inputs_from_instances, inputs_from_json
from core_grpc.settings import LimitsSettings
from core_grpc.types import Array, Datatype, InferRequest, InferResponse, ModelSpec, RequestedOutput, Tensor

_FIELDS = frozenset({"instances", "inputs", "outputs", "top_k", "signature_name"})


class AnswerForm(Enum):
    """How outputs are shown."""

    PREDICTIONS = "predictions"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class PredictCall:
    """A decoded ``:predict`` request, and how to answer it."""

    request: InferRequest
    form: AnswerForm
    top_k: int = 0
    shown: tuple[str, ...] | None = None
    """Names of the outputs to show; None shows all that were answered."""


def decode_predict_body(spec: ModelSpec, body: bytes, limits: LimitsSettings, deadline: float | None = None) -> PredictCall:
    """The call in a JSON body.

    Raises:
        InvalidArgument, InvalidTensor: the body is not as the module describes, or a value does not fit its input.
    """
    document = parse_document(body, limits)
    root = document.root
    refuse_unknown(root, _FIELDS, "body")
    if ("instances" in root) == ("inputs" in root):
        got = "both" if "inputs" in root else "neither"
        raise InvalidArgument(f"body: wanted either instances (rows) or inputs (whole tensors), got {got}")
    if text(root.get("signature_name", ""), "signature_name") not in ("", "serving_default"):
        raise InvalidArgument("signature_name: wanted 'serving_default' or nothing: a model has one signature here")
    top_k = checked_top_k(root.get("top_k", 0))
    outputs = tuple(RequestedOutput(text(name, "outputs")) for name in elements(root.get("outputs", []), "outputs"))
    inputs, form = _decode_inputs(spec, root, document)
    return PredictCall(InferRequest(spec.name, spec.version, inputs, outputs=outputs, deadline=deadline), form, top_k)


def checked_top_k(value: Any) -> int:
    """The number of classes to name for each row.

    Raises:
        InvalidArgument: not an integer from -1 (none).
    """
    if type(value) is not int or value < -1:
        raise InvalidArgument(f"top_k: wanted an integer: how many classes, 0 for the default, -1 for none, got {kind_of(value)}")
    return value


def encode_predict_response(spec: ModelSpec, response: InferResponse, call: PredictCall) -> RestBody:
    """The answer's body."""
    body = _encoded(spec, response, call, json_from_array)
    if b"null" in body:  # A number that is not finite, or just a text.
        body = _encoded(spec, response, call, json_from_array_with_tokens)
    return RestBody(JSON_TYPE, body)


def _decode_inputs(spec: ModelSpec, root: Mapping[str, Any], document: JsonDocument) -> tuple[dict[str, Tensor], AnswerForm]:
    if "instances" in root:
        return inputs_from_instances(spec, root["instances"], document), AnswerForm.PREDICTIONS
    return inputs_from_json(spec, root["inputs"], document), AnswerForm.OUTPUTS


def _encoded(spec: ModelSpec, response: InferResponse, call: PredictCall, json_from: JsonFromArray) -> bytes:
    shown = {name: tensor for name, tensor in response.outputs.items() if call.shown is None or name in call.shown}
    answer: dict[str, Any] = {"model": response.model_name, "version": response.model_version}
    classes = row_classes(spec, response.outputs, call.top_k)
    if call.form is AnswerForm.PREDICTIONS:
        answer["predictions"] = _predictions(spec, shown, json_from)
    elif shown:
        answer["outputs"] = {name: value_for_json(name, tensor.datatype, tensor.array, json_from) for name, tensor in shown.items()}
    if classes:
        answer["classes"] = [[_class(*item, json_from) for item in row] for row in classes]
    timing = response.timing
    answer["timing_ms"] = {
        "preprocess": round(timing.preprocess_s * 1000, 3),
        "queue": round(timing.queue_s * 1000, 3),
        "compute": round(timing.compute_s * 1000, 3),
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _predictions(spec: ModelSpec, outputs: Mapping[str, Tensor], json_from: JsonFromArray) -> Any:
    """A value, or an object by output name, for each row; a model without a batch dimension has one row."""
    if len(outputs) == 1:
        ((name, tensor),) = outputs.items()
        whole = value_for_json(name, tensor.datatype, tensor.array, json_from)
        return whole if spec.max_batch_size else [whole]
    if not spec.max_batch_size:
        return [{name: value_for_json(name, tensor.datatype, tensor.array, json_from) for name, tensor in outputs.items()}]
    rows = min((len(tensor.array) for tensor in outputs.values()), default=0)
    return [
        {
            name: value_for_json(name, tensor.datatype, tensor.array[row : row + 1].reshape(tensor.array.shape[1:]), json_from)
            for name, tensor in outputs.items()
        }
        for row in range(rows)
    ]


def value_for_json(name: str, datatype: Datatype, array: Array, json_from: JsonFromArray) -> Any:
    """An output as something ``orjson.dumps`` writes, nested as its shape is; BYTES elements as strings or ``{"b64": …}``."""
    if datatype is not Datatype.BYTES:
        return json_from(name, datatype, array)
    texts = np.empty(array.size, dtype=object)
    texts[:] = [_text_or_base64(element) for element in array.reshape(-1).tolist()]
    return texts.reshape(array.shape).tolist()


def _text_or_base64(element: bytes) -> str | dict[str, str]:
    try:
        return element.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode("ascii")}


def _class(label: str, index: int, score: float, json_from: JsonFromArray) -> dict[str, Any]:
    # As FP32, a score is written with the digits it has and not with those of its double.
    return {"label": label, "index": index, "score": json_from("score", Datatype.FP32, np.asarray(score, np.float32))}
