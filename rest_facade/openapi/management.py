"""Triton's extensions under ``/v2``, and loading and unloading under ``/v1``."""

from __future__ import annotations

from typing import Any

from rest_facade.openapi.operation import JSON, media, ok, operation
from rest_facade.openapi.responses import MODEL_ERRORS, v1_errors, v2_errors

_TAG = "management"
_OFF = "Refused at the edge (403) unless its setting `management` allows it; the node's own listener always offers it."
_LOAD_ERRORS = (400, 403, 404, 500, 503, 504)
_MEMORY_ERRORS = (400, 403, 404, 409, 501, 503, 504)


def management_paths() -> dict[str, Any]:
    """Every path. Unload comes before load, so that whoever tries all of them in order ends with what there was."""
    return {
        "/v2/models/stats": {"get": _read("server_statistics", "Statistics of all models", "V2Statistics", ())},
        **_of_model("/v2/models/{model}", "model", ("model",)),
        **_of_model("/v2/models/{model}/versions/{version}", "model_version", ("model", "version")),
        "/v2/repository/index": {"post": _index()},
        "/v2/repository/models/{model}/unload": {"post": _control("repository_model_unload", "Unload a model", "V2UnloadRequest")},
        "/v2/repository/models/{model}/load": {"post": _control("repository_model_load", "Load a model, or load it anew", "V2LoadRequest")},
        "/v1/models/{model}:unload": {"post": _v1_control("unload_model", "Unload a model", "UnloadModelResponse")},
        "/v1/models/{model}:load": {"post": _v1_control("load_model", "Load a model, or load it anew", "LoadModelResponse")},
        **_memory("system", "V2SystemRegion"),
        **_memory("cuda", "V2CudaRegion"),
        **_settings("/v2/trace/setting", "trace_setting", "What is traced", "V2TraceSettings", "V2TraceSettingsRequest"),
        **_settings(
            "/v2/models/{model}/trace/setting",
            "model_trace_setting",
            "What is traced of one model",
            "V2TraceSettings",
            "V2TraceSettingsRequest",
            ("model",),
        ),
        **_settings("/v2/logging", "log_settings", "What is logged", "V2LogSettings", "V2LogSettings"),
    }


def _read(name: str, summary: str, schema: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    answer = ok("The answer.", {JSON: media(schema)})
    return operation(_TAG, name, summary, {**answer, **v2_errors(*MODEL_ERRORS)}, parameters=parameters)


def _of_model(path: str, name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    return {
        f"{path}/config": {"get": _read(f"{name}_config", "A model's configuration", "V2ModelConfig", parameters)},
        f"{path}/stats": {"get": _read(f"{name}_statistics", "A model's statistics", "V2Statistics", parameters)},
    }


def _index() -> dict[str, Any]:
    return operation(
        _TAG,
        "repository_index",
        "Every model version with its state",
        {**ok("The index.", {JSON: media("V2Index")}), **v2_errors(400, 503, 504)},
        body={JSON: media("V2IndexRequest", only_those_that_answer={"ready": True})},
    )


def _control(name: str, summary: str, schema: str) -> dict[str, Any]:
    return operation(
        _TAG,
        name,
        summary,
        {**ok("It is done.", {JSON: media("V2Done")}), **v2_errors(*_LOAD_ERRORS)},
        description=_OFF,
        parameters=("model",),
        body={JSON: media(schema, as_it_is_on_the_disk={})},
    )


def _v1_control(name: str, summary: str, schema: str) -> dict[str, Any]:
    return operation(
        "models",
        name,
        summary,
        {**ok("It is done.", {JSON: media(schema)}), **v1_errors(*_LOAD_ERRORS)},
        description=_OFF,
        parameters=("model",),
        body={JSON: media({"type": "object"}, nothing_more_to_say={})},
    )


def _memory(kind: str, region: str) -> dict[str, Any]:
    path, name = f"/v2/{kind}sharedmemory", f"{kind}_shared_memory"
    return {
        f"{path}/status": {"get": _memory_status(f"{name}_status", kind, region, ())},
        f"{path}/region/{{region}}/status": {"get": _memory_status(f"{name}_region_status", kind, region, ("region",))},
        f"{path}/region/{{region}}/register": {"post": _register(f"{name}_register", kind, region)},
        f"{path}/region/{{region}}/unregister": {"post": _unregister(f"{name}_region_unregister", kind, ("region",))},
        f"{path}/unregister": {"post": _unregister(f"{name}_unregister", kind, ())},
    }


def _memory_status(name: str, kind: str, region: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    answer = ok("The regions.", {JSON: media({"type": "array", "items": {"$ref": f"#/components/schemas/{region}"}})})
    errors = v2_errors(*_MEMORY_ERRORS)
    return operation(_TAG, name, f"Registered {kind} shared memory", {**answer, **errors}, description=_OFF, parameters=parameters)


def _register(name: str, kind: str, region: str) -> dict[str, Any]:
    return operation(
        _TAG,
        name,
        f"Register {kind} shared memory",
        {**ok("It is registered.", {JSON: media("V2Done")}), **v2_errors(*_MEMORY_ERRORS)},
        description=f"{_OFF} 501 unless the node's setting `shared_memory` allows it.",
        parameters=("region",),
        body={JSON: media(f"{region}Request")},
    )


def _unregister(name: str, kind: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    return operation(
        _TAG,
        name,
        f"Unregister {kind} shared memory",
        {**ok("It is not registered any more.", {JSON: media("V2Done")}), **v2_errors(*_MEMORY_ERRORS)},
        description=_OFF,
        parameters=parameters,
    )


def _settings(path: str, name: str, summary: str, answer: str, request: str, parameters: tuple[str, ...] = ()) -> dict[str, Any]:  # noqa: PLR0917
    responses = {**ok("What holds now.", {JSON: media(answer)}), **v2_errors(400, 403, 404, 501, 503, 504)}
    update = operation(
        _TAG,
        f"{name}_update",
        f"{summary}, changed",
        responses,
        description=_OFF,
        parameters=parameters,
        body={JSON: media(request, nothing_changed={})},
    )
    return {path: {"get": operation(_TAG, name, summary, responses, description=_OFF, parameters=parameters), "post": update}}
