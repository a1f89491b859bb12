"""The door ``/v1``."""

from __future__ import annotations

from typing import Any

from rest_facade.openapi.examples import CLASSES, MODEL, TIMING_MS, TINY_IMAGE
from rest_facade.openapi.operation import JSON, image_bodies, media, ok, operation
from rest_facade.openapi.responses import INFER_ERRORS, MODEL_ERRORS, v1_errors


def v1_paths() -> dict[str, Any]:
    """Every path under ``/v1``."""
    return {
        "/v1/models": {"get": _list_models()},
        "/v1/models/{model}": {"get": _get_model("get_model", ("model",))},
        "/v1/models/{model}/versions/{version}": {"get": _get_model("get_model_version", ("model", "version"))},
        "/v1/predict": {"post": _predict()},
        "/v1/models/{model}:predict": {"post": _model_predict("model_predict", ("model",))},
        "/v1/models/{model}/versions/{version}:predict": {"post": _model_predict("model_version_predict", ("model", "version"))},
    }


def _list_models() -> dict[str, Any]:
    return operation(
        "models",
        "list_models",
        "All models",
        {
            **ok("Every model version of the repository.", {JSON: media("ListModelsResponse", demo={"models": [MODEL]})}),
            **v1_errors(503, 504),
        },
        description="Every model version in the repository with its state, inputs and outputs, also those that failed to load.",
    )


def _get_model(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    return operation(
        "models",
        name,
        "One model" + (" version" if "version" in parameters else ""),
        {**ok("The model version.", {JSON: media("GetModelResponse", demo={"model": MODEL})}), **v1_errors(*MODEL_ERRORS)},
        description="" if "version" in parameters else "The newest version that is ready.",
        parameters=parameters,
    )


def _predict() -> dict[str, Any]:
    photo = {"name": "input", "datatype": "BYTES", "shape": [1, 1], "bytes_values": [TINY_IMAGE]}
    numbers = {"name": "x", "datatype": "FP32", "shape": [1, 4], "float_values": [5.1, 3.5, 1.4, 0.2]}
    answer = {
        "model": "efficientnet_lite0",
        "version": "1",
        "id": "",
        "outputs": [],
        "classes": [{"top": CLASSES}],
        "timing": {**{f"{part}_ms": time_ms for part, time_ms in TIMING_MS.items()}, "batch_rows": 1},
    }
    return operation(
        "predict",
        "predict",
        "Run a model, protobuf JSON",
        {**ok("The outputs and classes. (This example leaves the outputs out.)", {JSON: media("PredictResponse", demo=answer)})}
        | v1_errors(*INFER_ERRORS),
        description="`tensorgate.v1.InferenceService/Predict` as JSON: what gRPC callers send, with the same names. Unknown fields are "
        "ignored here, as protobuf JSON does. For large arrays of numbers `:predict` and `/v2` are several times faster.",
        body={
            JSON: media(
                "PredictRequest",
                an_image_as_base64={"model": "efficientnet_lite0", "inputs": [photo], "outputs": ["probabilities"], "top_k": 3},
                numbers={"model": "my_model", "inputs": [numbers]},
            )
        },
    )


def _model_predict(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    answered = {"model": "efficientnet_lite0", "version": "1", "classes": [CLASSES], "timing_ms": TIMING_MS}
    numbers = {"model": "my_model", "version": "1", "outputs": {"y": [[0.97, 0.03]]}, "timing_ms": TIMING_MS}
    rows = {"model": "my_model", "version": "1", "predictions": [[0.97, 0.03]], "timing_ms": TIMING_MS}
    return operation(
        "predict",
        name,
        "Run a model, its own JSON or an upload",
        {
            **ok("The answer.", {JSON: media("ModelAnswer", an_upload=answered, inputs=numbers, instances=rows)}),
            **v1_errors(*INFER_ERRORS),
        },
        description="JSON with `instances` (rows) or `inputs` (by input name), a form with a file, or an image alone. Where an input "
        "accepts images the server decodes, resizes and normalises them as the model declares. "
        "A body without a content type is read as JSON.",
        parameters=(*parameters, "top_k", "outputs"),
        body={
            JSON: media(
                {"anyOf": [{"$ref": "#/components/schemas/InstancesRequest"}, {"$ref": "#/components/schemas/InputsRequest"}]},
                instances_with_an_image={"instances": [{"b64": TINY_IMAGE}], "outputs": ["probabilities"], "top_k": 3},
                inputs_with_an_image={"inputs": {"input": [{"b64": TINY_IMAGE}]}, "outputs": ["probabilities"], "top_k": 3},
                instances_with_numbers={"instances": [[5.1, 3.5, 1.4, 0.2]]},
                inputs_with_numbers={"inputs": {"x": [[5.1, 3.5, 1.4, 0.2]]}},
            ),
            **image_bodies(),
        },
    )
