"""The door ``/v2``: the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

from rest_facade.openapi.operation import JSON, image_bodies, media, ok, operation
from rest_facade.openapi.responses import INFER_ERRORS, MODEL_ERRORS, v2_errors
from rest_facade.openapi.schema import Schema

_TAG = "open inference protocol"
_BINARY = "application/octet-stream"

_LENGTH: Schema = {"type": "integer", "minimum": 0}

_LENGTH_PARAMETER: Schema = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "The binary tensor extension: how many bytes of the body are JSON; tensors follow in the order of the inputs that carry "
    "`binary_data_size`, little-endian, row-major. 0: the whole body is the model's only input. Left out: the whole body is JSON.",
    "schema": _LENGTH,
}
_LENGTH_HEADER: Schema = {"description": "How many bytes of a binary answer are JSON.", "schema": _LENGTH}

_METADATA = {
    "name": "efficientnet_lite0",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
    "outputs": [
        {"name": "probabilities", "datatype": "FP32", "shape": [-1, 1000]},
    ],
}
_SERVER = {"name": "tensorgate", "version": "0.1.0", "extensions": ["binary_tensor_data"]}


def v2_paths() -> dict[str, Any]:
    """Every path under ``/v2``."""
    return {
        "/v2/health/live": {"get": _health("server_live", "Is the server alive?", ())},
        "/v2/health/ready": {"get": _health("server_ready", "Is the server ready?", ())},
        "/v2": {"get": _server_metadata()},
        **_model_paths("/v2/models/{model}", "model", ("model",)),
        **_model_paths("/v2/models/{model}/versions/{version}", "model_version", ("model", "version")),
    }


def _model_paths(path: str, name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    ready = _health(f"{name}_ready", f"Is the {name.replace('_', ' ')} ready?", parameters)
    return {
        path: {"get": _model_metadata(name, parameters)},
        f"{path}/ready": {"get": ready},
        f"{path}/infer": {"post": _infer(name, parameters)},
    }


def _health(name: str, summary: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    errors = v2_errors(400, 404, 503) if parameters else v2_errors(503)
    return operation(_TAG, name, summary, {**ok("Yes.", {JSON: media({"type": "object"})}), **errors}, parameters=parameters)


def _server_metadata() -> dict[str, Any]:
    answer = ok("The server.", {JSON: media("V2ServerMetadata", this_server=_SERVER)})
    return operation(_TAG, "server_metadata", "The server's name, version and extensions", {**answer, **v2_errors(503)})


def _model_metadata(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    answer = ok("The model.", {JSON: media("V2ModelMetadata", demo=_METADATA)})
    errors = v2_errors(*MODEL_ERRORS)
    return operation(_TAG, f"{name}_metadata", "What a model takes and gives", {**answer, **errors}, parameters=parameters)


def _infer(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    binary: Schema = {"type": "string", "contentMediaType": _BINARY, "format": "binary"}
    sent = {"id": "1", "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
    outputs = [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.97, 0.03]}]
    answered = {"model_name": "my_model", "model_version": "1", "id": "1", "outputs": outputs}
    content = {JSON: media("V2InferResponse", numbers=answered), _BINARY: media(binary)}
    return operation(
        _TAG,
        f"{name}_infer",
        "Run a model",
        {
            **ok(
                "The outputs: JSON, with tensors behind it where binary data was asked for.",
                content,
                {_LENGTH_PARAMETER["name"]: _LENGTH_HEADER},
            ),
            **v2_errors(*INFER_ERRORS),
        },
        description="JSON, JSON followed by binary tensors, one raw tensor, or an upload as for `:predict`. Values are flat or nested, "
        "row-major. A body without a content type is read as JSON.",
        parameters=parameters,
        own_parameters=(_LENGTH_PARAMETER,),
        body={JSON: media("V2InferRequest", numbers=sent), _BINARY: media(binary), **image_bodies()},
    )
