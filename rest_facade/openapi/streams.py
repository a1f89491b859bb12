"""The streams as REST: Watch and PredictMany under ``/v1``, the generate extension under ``/v2``."""

from __future__ import annotations

from typing import Any

from rest_facade.openapi.operation import JSON, media, ok, operation
from rest_facade.openapi.responses import INFER_ERRORS, v1_errors, v2_errors
from rest_facade.openapi.schema import Schema, list_of, ref

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

_NUMBERS = {"model": "my_model", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "float_values": [5.1, 3.5, 1.4, 0.2]}]}
_TEXT: Schema = {"type": "string"}
_EVENTS: Schema = {"description": "Server-sent events, each with one line of `data` that is JSON."}


def stream_paths() -> dict[str, Any]:
    """Every path of a stream."""
    return {
        "/v1/watch": {"post": _watch()},
        "/v1/predict:many": {"post": _predict_many()},
        **_generate_paths("/v2/models/{model}", "model", ("model",)),
        **_generate_paths("/v2/models/{model}/versions/{version}", "model_version", ("model", "version")),
    }


def _watch() -> dict[str, Any]:
    return operation(
        "predict",
        "watch",
        "Run a model and stream its answers",
        {
            **ok(
                "A `WatchResponse` for each answer, sent when it is made: a line of JSON each, or a server-sent event each for callers "
                "that accept `text/event-stream`. The last one has `final`; a failure after the first answer is an outcome with its "
                "`code`.",
                {LINES: media(_TEXT), EVENTS: media(_EVENTS)},
            ),
            **v1_errors(*INFER_ERRORS),
        },
        description="`tensorgate.v1.InferenceService/Watch` as JSON. Decoupled models answer any number of times, others once.",
        body={JSON: media("WatchRequest", numbers={"request": _NUMBERS})},
    )


def _predict_many() -> dict[str, Any]:
    return operation(
        "predict",
        "predict_many",
        "Run many requests, one answer",
        {
            **ok("The outcome of each request, in their order.", {JSON: media("PredictManyResponse")}),
            **v1_errors(*INFER_ERRORS),
        },
        description="`tensorgate.v1.InferenceService/PredictMany` as JSON: an array of requests, for any models. One that fails does "
        "not stop the others.",
        body={JSON: media(list_of(ref("PredictManyRequest"), "The requests."), two_requests=[{"request": _NUMBERS}] * 2)},
    )


def _generate_paths(path: str, name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    return {
        f"{path}/generate": {"post": _generate(f"{name}_generate", parameters)},
        f"{path}/generate_stream": {"post": _generate_stream(f"{name}_generate_stream", parameters)},
    }


def _generate(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    answered = {"model_name": "my_model", "model_version": "1", "y": [5.1, 3.5, 1.4, 0.2]}
    return operation(
        "open inference protocol",
        name,
        "Run a model, one JSON object in and one out",
        {**ok("The outputs by name.", {JSON: media("GenerateResponse", numbers=answered)}), **v2_errors(*INFER_ERRORS)},
        description="Triton's generate extension: members named like inputs are their values, other scalars are parameters.",
        parameters=parameters,
        body={JSON: media("GenerateRequest", numbers={"x": [5.1, 3.5, 1.4, 0.2]})},
    )


def _generate_stream(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    return operation(
        "open inference protocol",
        name,
        "Run a model, one JSON object in and server-sent events out",
        {
            **ok(
                "An event for each answer, sent when it is made; its data is as of `generate`. A failure after the first answer is an "
                'event with `{"error": "…"}`.',
                {EVENTS: media(_EVENTS)},
            ),
            **v2_errors(*INFER_ERRORS),
        },
        description="As `generate`, for models that answer any number of times.",
        parameters=parameters,
        body={JSON: media("GenerateRequest", numbers={"x": [5.1, 3.5, 1.4, 0.2]})},
    )
