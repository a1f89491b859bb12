"""The messages of ``tensorgate.v1`` as the edge writes and reads them in JSON. Each has its message's fields; a test compares them."""

from __future__ import annotations

from rest_facade.openapi.schema import BASE64, DATATYPES, INT64, Schema, int32, list_of, number, object_of, ref, text

V1_MESSAGES: dict[str, Schema] = {
    "Tensor": object_of(
        "A tensor with its values in exactly one of `raw` and the `*_values` fields.",
        {
            "name": text("The input's or output's name."),
            "datatype": text("Empty in a request: the datatype that the model declares.", enum=["", *DATATYPES]),
            "shape": list_of({"type": "integer", "format": "int32"}, "Row-major; the product is the number of values."),
            "raw": {
                **BASE64,
                "type": "string",
                "description": "Little-endian row-major bytes; BYTES elements each behind a 4-byte little-endian length.",
            },
            "bool_values": list_of({"type": "boolean"}, "Values of a BOOL tensor."),
            "int_values": list_of({"type": "integer", "format": "int32"}, "Values of an INT8, INT16, INT32, UINT8 or UINT16 tensor."),
            "int64_values": list_of(INT64, "Values of an INT64 or UINT32 tensor. Answered as strings."),
            "uint64_values": list_of(INT64, "Values of a UINT64 tensor. Answered as strings."),
            "float_values": list_of(number("FP32."), "Values of an FP32, FP16 or BF16 tensor."),
            "double_values": list_of(number("FP64."), "Values of an FP64 tensor."),
            "bytes_values": list_of(BASE64, "Elements of a BYTES tensor; an encoded image where the input accepts one."),
            "string_values": list_of({"type": "string"}, "Elements of a BYTES tensor that are text. Never used in answers."),
        },
        ("name", "shape"),
    ),
    "PredictRequest": object_of(
        "One inference.",
        {
            "model": text("The model's name. Empty for the default model."),
            "version": text("Digits. Empty for the newest that is ready."),
            "id": text("Echoed in the answer."),
            "inputs": list_of(ref("Tensor"), "The inputs, each name once."),
            "outputs": list_of({"type": "string"}, "Names of the outputs wanted. Empty for all."),
            "encoding": text(
                "How the answer carries values. Unspecified: as the request's first tensor carried its own.",
                enum=["TENSOR_ENCODING_UNSPECIFIED", "TENSOR_ENCODING_RAW", "TENSOR_ENCODING_VALUES"],
            ),
            "top_k": int32("For models with labels: how many of the best classes to name for each row. 0 means 5; -1 means none."),
        },
        ("inputs",),
    ),
    "PredictResponse": object_of(
        "One answer.",
        {
            "model": text("The model that answered."),
            "version": text("The version that answered."),
            "id": text("The request's id."),
            "outputs": list_of(ref("Tensor"), "In the order asked for, or in the model's own."),
            "classes": list_of(ref("RowClasses"), "For models with labels: the best classes of each row."),
            "timing": ref("Timing"),
        },
    ),
    "RowClasses": object_of("The best classes of one row.", {"top": list_of(ref("ClassScore"), "Best first.")}),
    "ClassScore": object_of(
        "One class and its score.",
        {
            "label": text("From the model's label file."),
            "index": int32("The class index, from 0."),
            "score": number("The score in the labelled output (a probability where that output is one)."),
        },
    ),
    "Timing": object_of(
        "Where the server spent the time of one request, in milliseconds.",
        {
            "preprocess_ms": number("Preprocessing (decoding an image, …)."),
            "queue_ms": number("Waiting for an instance and for batch mates."),
            "compute_ms": number("Running the batch that this request was part of."),
            "batch_rows": int32("Rows in that batch."),
        },
    ),
    "ListModelsResponse": object_of("All models.", {"models": list_of(ref("Model"), "By name, then version.")}),
    "GetModelResponse": object_of("One model version.", {"model": ref("Model")}),
    "Model": object_of(
        "A model version and what it takes and gives.",
        {
            "name": text("The model's name in the repository."),
            "version": text("Digits."),
            "state": text(
                "Where the version is in its life.",
                enum=[
                    "MODEL_STATE_UNSPECIFIED",
                    "MODEL_STATE_LOADING",
                    "MODEL_STATE_READY",
                    "MODEL_STATE_UNLOADING",
                    "MODEL_STATE_UNAVAILABLE",
                ],
            ),
            "reason": text("Why it is unavailable, in one line."),
            "platform": text("In Triton's words: onnxruntime_onnx, tensorrt_plan, identity."),
            "max_batch_size": int32("The largest batch. 0: no batch dimension."),
            "inputs": list_of(ref("TensorSpec"), "What it takes."),
            "outputs": list_of(ref("TensorSpec"), "What it gives."),
            "description": text("One line from model.toml."),
            "license": text("The licence of the weights (SPDX)."),
            "label_count": int32("How many labels the model has. 0: not a classifier with labels."),
        },
    ),
    "TensorSpec": object_of(
        "An input or output.",
        {
            "name": text("Its name."),
            "datatype": text("Its datatype.", enum=["", *DATATYPES]),
            "shape": list_of({"type": "integer", "format": "int32"}, "With the batch dimension; -1 is variable."),
            "dimension_names": list_of({"type": "string"}, "Symbolic names of the dimensions; empty where there is none."),
            "accepts": text("`image` where an encoded image may be sent instead of numbers, else empty."),
            "description": text("One line from model.toml."),
        },
    ),
}
"""By message name."""
