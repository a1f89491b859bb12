"""The bodies of ``:predict``, and the schemas that several doors share."""

from __future__ import annotations

from rest_facade.openapi.schema import BASE64, Schema, int32, list_of, object_of, ref, text

_NESTED: Schema = {
    "description": "A value, or lists of values nested to any depth; all lists of one depth have the same length.",
    "anyOf": [{"type": ["number", "boolean", "string"]}, {"type": "array", "items": {"$ref": "#/components/schemas/Nested"}}],
}

_SHARED: dict[str, Schema] = {
    "V1Error": object_of(
        "google.rpc.Status.",
        {
            "code": int32("A google.rpc.Code."),
            "message": text("One line that names the field, what was wanted and what came."),
            "details": list_of({"type": "object"}, "Empty."),
        },
        ("code", "message", "details"),
    ),
    "Nested": _NESTED,
    "Base64": object_of("Bytes in JSON: the way of TensorFlow Serving.", {"b64": {**BASE64, "description": "The bytes."}}, ("b64",)),
    "Value": {
        "description": 'Numbers, booleans or strings, nested as the input is shaped; bytes, such as an image, as `{"b64": …}`.',
        "anyOf": [{"type": ["number", "boolean", "string"]}, ref("Base64"), {"type": "array", "items": ref("Value")}],
    },
}

_PREDICT_COMMON: Schema = {
    "outputs": list_of({"type": "string"}, "Names of the outputs wanted. Left out: all."),
    "signature_name": text("Only `serving_default`, which clients of TensorFlow Serving send."),
    "top_k": int32("For models with labels: how many of the best classes to name for each row. 0 or left out means 5; -1 means none."),
}

_BODIES: dict[str, Schema] = {
    "InstancesRequest": object_of(
        "Row by row, as TensorFlow Serving takes it.",
        {
            "instances": list_of(
                {"anyOf": [ref("Value"), {"type": "object", "additionalProperties": ref("Value")}]},
                "The rows: values for a model with one input, objects by input name otherwise.",
                minItems=1,
            ),
            **_PREDICT_COMMON,
        },
        ("instances",),
    ),
    "InputsRequest": object_of(
        "Input by input, with the batch dimension (added when missing).",
        {
            "inputs": {
                "description": "Values by input name; for a model with one input, its values alone.",
                "anyOf": [{"type": "object", "additionalProperties": ref("Value")}, ref("Value")],
            },
            **_PREDICT_COMMON,
        },
        ("inputs",),
    ),
    "Upload": object_of(
        "A form with the image as a file.",
        {
            "image": {
                "description": "The encoded image (JPEG, PNG, …); the field may also be called `file` or like the model's input. "
                "Several files are several rows.",
                "type": "string",
                "contentMediaType": "application/octet-stream",
            },
            "top_k": int32("How many of the best classes to name. Left out means 5; -1 means none."),
            "outputs": text("Names of outputs to answer in full, with commas between."),
        },
        ("image",),
    ),
    "ModelAnswer": object_of(
        "The answer of `:predict`.",
        {
            "model": text("The model that answered."),
            "version": text("The version that answered."),
            "predictions": list_of({}, "For `instances`: the output's rows; objects by output name when there are several outputs."),
            "outputs": {
                "type": "object",
                "description": "For `inputs`, and for uploads that name outputs: nested values by output name.",
                "additionalProperties": ref("Value"),
            },
            "classes": list_of(list_of(ref("ClassScore"), "One row, best first."), "For models with labels: the best classes of each row."),
            "timing_ms": {
                "type": "object",
                "description": "Where the time went, in milliseconds.",
                "properties": {"preprocess": {"type": "number"}, "queue": {"type": "number"}, "compute": {"type": "number"}},
            },
        },
        ("model", "version"),
    ),
}

PREDICT_SCHEMAS: dict[str, Schema] = {**_SHARED, **_BODIES}
