"""The bodies of the streams: messages of ``tensorgate.v1`` in JSON, and the generate extension's objects."""

from __future__ import annotations

from rest_facade.openapi.schema import Schema, int32, list_of, object_of, ref, text

STREAM_MESSAGES: dict[str, Schema] = {
    "PredictManyRequest": object_of("One of many requests.", {"request": ref("PredictRequest")}, ("request",)),
    "WatchRequest": object_of("One inference whose answers are streamed.", {"request": ref("PredictRequest")}, ("request",)),
    "Outcome": object_of(
        "What became of a request of a stream.",
        {
            "id": text("The id of the request."),
            "response": {**ref("PredictResponse"), "description": "The answer, when it succeeded."},
            "code": int32("A google.rpc.Code; 0 is success."),
            "message": text("One line for the caller when it failed."),
        },
    ),
    "PredictManyResponse": object_of(
        "All the answers.",
        {
            "outcomes": list_of(ref("Outcome"), "One for each request, in their order."),
            "succeeded": int32("How many succeeded."),
            "failed": int32("How many failed."),
        },
    ),
    "LoadModelResponse": object_of("The load succeeded.", {"models": list_of(ref("Model"), "The versions that are ready now.")}),
    "UnloadModelResponse": object_of("The unload succeeded.", {}),
}
"""By message name; each has its message's fields."""

_FREE: Schema = {"type": "object", "additionalProperties": True}

GENERATE_SCHEMAS: dict[str, Schema] = {
    "GenerateRequest": {
        **_FREE,
        "description": "Members that are named like inputs are their values: a scalar, or an array that fills the input's shape.",
        "properties": {
            "id": text("Echoed in the answer."),
            "parameters": {**_FREE, "description": "More members of the same kinds."},
        },
    },
    "GenerateResponse": {
        **_FREE,
        "description": "Each output by name: a scalar where it has one element, else a flat array.",
        "properties": {
            "id": text("The request's id, if it had one."),
            "model_name": text("The model that answered."),
            "model_version": text("The version that answered."),
        },
        "required": ["model_name", "model_version"],
    },
}
