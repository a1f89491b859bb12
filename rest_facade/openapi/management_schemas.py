"""The bodies of Triton's extensions under ``/v2``: configuration, statistics, repository, shared memory, trace and log settings."""

from __future__ import annotations

from rest_facade.openapi.schema import Schema, list_of, object_of, ref, text

_COUNT: Schema = {"type": "integer", "minimum": 0}
_FREE: Schema = {"type": "object", "additionalProperties": True}


def _durations(names: tuple[str, ...]) -> Schema:
    return {name: ref("V2Duration") for name in names}


MANAGEMENT_SCHEMAS: dict[str, Schema] = {
    "V2ModelConfig": {**_FREE, "description": "Triton's `ModelConfig`: its field names, enums by name, dims without the batch dimension."},
    "V2Duration": object_of("How often, and how many nanoseconds in all.", {"count": _COUNT, "ns": _COUNT}, ("count", "ns")),
    "V2BatchStatistics": object_of(
        "Executions with one batch size.",
        {"batch_size": _COUNT, **_durations(("compute_input", "compute_infer", "compute_output"))},
        ("batch_size", "compute_infer"),
    ),
    "V2ModelStatistics": object_of(
        "What a model version did since it was loaded.",
        {
            "name": text("The model."),
            "version": text("Its version."),
            "last_inference": {**_COUNT, "description": "Milliseconds since the epoch; 0 for never."},
            "inference_count": {**_COUNT, "description": "Rows of the requests that succeeded."},
            "execution_count": {**_COUNT, "description": "Runs of the engine."},
            "inference_stats": object_of(
                "Requests.",
                _durations(("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")),
            ),
            "response_stats": {**_FREE, "description": "Of a decoupled model: answers by their index."},
            "batch_stats": list_of(ref("V2BatchStatistics"), "Executions by batch size."),
            "memory_usage": list_of(_FREE, "Empty here."),
        },
        ("name", "version", "inference_count", "execution_count", "inference_stats", "batch_stats"),
    ),
    "V2Statistics": object_of("Statistics.", {"model_stats": list_of(ref("V2ModelStatistics"), "By model and version.")}, ("model_stats",)),
    "V2IndexRequest": object_of("Which models.", {"ready": {"type": "boolean", "description": "Only those that answer."}}),
    "V2Index": list_of(
        object_of(
            "A model version.",
            {
                "name": text("The model."),
                "version": text("Its version; left out where a model has none that could be served."),
                "state": text("Where it is in its life.", enum=["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]),
                "reason": text("Why."),
            },
            ("name", "state"),
        ),
        "Every model version of the repository.",
    ),
    "V2LoadRequest": object_of(
        "What to load instead of what is on the disk.",
        {
            "parameters": {
                **_FREE,
                "description": "`config`: JSON of a part of a `ModelConfig`, as a string. `file:<version>/<name>`: a file in base64 "
                "(needs `config`; not for Python models).",
            }
        },
    ),
    "V2UnloadRequest": object_of(
        "How to unload.", {"parameters": {**_FREE, "description": "`unload_dependents`, which changes nothing here."}}
    ),
    "V2Done": object_of("Done.", {}),
    "V2SystemRegion": object_of(
        "System shared memory.",
        {"name": text("The region."), "key": text("The shared memory object."), "offset": _COUNT, "byte_size": _COUNT},
        ("name", "key", "offset", "byte_size"),
    ),
    "V2SystemRegionRequest": object_of(
        "System shared memory to register.",
        {"key": text("The shared memory object's name."), "offset": _COUNT, "byte_size": {**_COUNT, "minimum": 1}},
        ("key", "byte_size"),
    ),
    "V2CudaRegion": object_of(
        "CUDA shared memory.", {"name": text("The region."), "device_id": _COUNT, "byte_size": _COUNT}, ("name", "device_id", "byte_size")
    ),
    "V2CudaRegionRequest": object_of(
        "CUDA shared memory to register.",
        {
            "raw_handle": object_of("The IPC handle.", {"b64": text("64 bytes in base64.")}, ("b64",)),
            "device_id": _COUNT,
            "byte_size": {**_COUNT, "minimum": 1},
        },
        ("raw_handle", "byte_size"),
    ),
    "V2TraceSettings": object_of(
        "What is traced.",
        {
            "trace_level": list_of(text("A level.", enum=["OFF", "TIMESTAMPS"]), "What is written."),
            "trace_rate": text("One request of so many is traced."),
            "trace_count": text("How many more are traced; -1 for no limit."),
            "log_frequency": text("A file is written after so many traces; 0 writes one at the end."),
            "trace_file": text("Where; set where the server is started."),
            "trace_mode": text("How."),
        },
    ),
    "V2TraceSettingsRequest": {
        **_FREE,
        "description": "Trace settings to change: strings, or null for the setting above.",
    },
    "V2LogSettings": object_of(
        "What is logged.",
        {
            "log_file": text("Empty: standard error."),
            **{name: {"type": "boolean"} for name in ("log_info", "log_warning", "log_error")},
            "log_verbose_level": {**_COUNT, "description": "Above 0 shows debug lines."},
            "log_format": text("How times are written.", enum=["default", "ISO8601"]),
        },
    ),
}
