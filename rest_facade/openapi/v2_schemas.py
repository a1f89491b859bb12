"""The bodies of ``/v2``: the Open Inference Protocol with Triton's extensions."""

from __future__ import annotations

from rest_facade.openapi.schema import DATATYPE, SHAPE, Schema, list_of, object_of, ref, text

_PARAMETER_VALUE: Schema = {"type": ["boolean", "number", "string"]}
_TENSOR_PARAMETERS = {
    "type": "object",
    "description": "`binary_data_size` (bytes) on a tensor whose values follow the JSON.",
    "additionalProperties": _PARAMETER_VALUE,
}

V2_SCHEMAS: dict[str, Schema] = {
    "V2Error": object_of("An error.", {"error": text("One line that names the field, what was wanted and what came.")}, ("error",)),
    "V2Input": object_of(
        "A tensor of a request.",
        {
            "name": text("The input's name."),
            "shape": SHAPE,
            "datatype": DATATYPE,
            "parameters": _TENSOR_PARAMETERS,
            "data": {**ref("Nested"), "description": "The values, flat or nested; BYTES as strings."},
        },
        ("name", "shape", "datatype"),
    ),
    "V2RequestedOutput": object_of(
        "An output asked for.",
        {
            "name": text("The output's name."),
            "parameters": {
                "type": "object",
                "description": "`binary_data` (true: values behind the JSON instead of in it).",
                "additionalProperties": _PARAMETER_VALUE,
            },
        },
        ("name",),
    ),
    "V2InferRequest": object_of(
        "One inference.",
        {
            "id": text("Echoed in the answer."),
            "parameters": {
                "type": "object",
                "description": "`binary_data_output` (true: all outputs behind the JSON).",
                "additionalProperties": _PARAMETER_VALUE,
            },
            "inputs": list_of(ref("V2Input"), "The inputs, each name once.", minItems=1),
            "outputs": list_of(ref("V2RequestedOutput"), "The outputs wanted. Left out: all."),
        },
        ("inputs",),
    ),
    "V2Output": object_of(
        "A tensor of an answer.",
        {
            "name": text("The output's name."),
            "datatype": DATATYPE,
            "shape": SHAPE,
            "parameters": _TENSOR_PARAMETERS,
            "data": list_of(
                {"type": ["number", "boolean", "string"]},
                "The values, flat, row-major. What is not finite is written as the bare `NaN`, `Infinity` and `-Infinity`, as Triton does; "
                "strict parsers: ask for binary data.",
            ),
        },
        ("name", "datatype", "shape"),
    ),
    "V2InferResponse": object_of(
        "One answer.",
        {
            "model_name": text("The model that answered."),
            "model_version": text("The version that answered."),
            "id": text("The request's id, when it had one."),
            "outputs": list_of(ref("V2Output"), "In the order asked for, or in the model's own."),
        },
        ("model_name", "model_version", "outputs"),
    ),
    "V2ServerMetadata": object_of(
        "The server.",
        {
            "name": text("The server's name."),
            "version": text("Its version."),
            "extensions": list_of({"type": "string"}, "The protocol extensions it offers."),
        },
        ("name", "version", "extensions"),
    ),
    "V2TensorMetadata": object_of(
        "An input or output.",
        {
            "name": text("Its name."),
            "datatype": DATATYPE,
            "shape": list_of({"type": "integer", "minimum": -1}, "With the batch dimension; -1 is variable."),
        },
        ("name", "datatype", "shape"),
    ),
    "V2ModelMetadata": object_of(
        "A model.",
        {
            "name": text("The model's name."),
            "versions": list_of({"type": "string"}, "The versions that are ready."),
            "platform": text("In Triton's words."),
            "inputs": list_of(ref("V2TensorMetadata"), "What it takes."),
            "outputs": list_of(ref("V2TensorMetadata"), "What it gives."),
        },
        ("name", "versions", "platform", "inputs", "outputs"),
    ),
}
