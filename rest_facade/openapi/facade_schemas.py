"""The bodies of the facade's own routes."""

from __future__ import annotations

from rest_facade.openapi.schema import SHAPE, Schema, list_of, object_of, ref, text

FACADE_SCHEMAS: dict[str, Schema] = {
    "SimpleRequest": object_of(
        "One inference with a model that has one input of numbers.",
        {
            "input": {
                **ref("Nested"),
                "description": "The values (numbers, booleans for a BOOL input). A missing batch dimension is added. "
                "`NaN`, `Infinity` and `-Infinity` may stand as numbers.",
            },
            "shape": {**SHAPE, "description": "The shape of `input` when that is one flat list. Left out: that of the nesting."},
            "model": text("The model's name. Left out: the server's default model, or the only one there is."),
            "version": text("Digits. Left out: the newest that is ready."),
            "output": text("The output wanted. Left out: the model's first."),
        },
        ("input",),
        additionalProperties=False,
    ),
    "SimpleResponse": object_of(
        "One answer.",
        {
            "output": {
                **ref("Nested"),
                "description": "The output's values, nested. What is not finite is written as the bare `NaN`, `Infinity` and `-Infinity`, "
                "as `/v2` does.",
            },
            "shape": SHAPE,
            "output_name": text("Which output this is."),
            "model": text("The model that answered."),
            "version": text("The version that answered."),
            "classes": list_of(
                list_of(ref("ClassScore"), "One row, best first."), "For models with labels: the five best classes of each row."
            ),
        },
        ("output", "shape", "output_name", "model", "version"),
    ),
    "Liveness": object_of("The facade runs.", {"status": text("Always `live`.", const="live")}, ("status",)),
    "Readiness": object_of(
        "Whether the server answers inference requests.",
        {
            "status": text("The verdict.", enum=["ready", "not ready"]),
            "core": text(
                "The core's own word (grpc.health.v1), or `UNREACHABLE`.", enum=["SERVING", "NOT_SERVING", "UNKNOWN", "UNREACHABLE"]
            ),
        },
        ("status", "core"),
    ),
}
