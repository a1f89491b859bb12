"""The facade's own routes."""

from __future__ import annotations

from typing import Any

from rest_facade.openapi.operation import JSON, media, ok, operation
from rest_facade.openapi.responses import INFER_ERRORS, v1_errors


def facade_paths() -> dict[str, Any]:
    """Every path that the facade answers itself, but for pages."""
    return {"/predict": {"post": _predict()}, "/health": {"get": _health()}, "/health/live": {"get": _live()}}


def _predict() -> dict[str, Any]:
    answered = {"output": [[0.97, 0.03]], "shape": [1, 2], "output_name": "y", "model": "my_model", "version": "1"}
    return operation(
        "predict",
        "simple_predict",
        "Run a model with one input: numbers in, numbers out",
        {
            **ok("The model's first output, or the one asked for.", {JSON: media("SimpleResponse", numbers=answered)}),
            **v1_errors(*INFER_ERRORS),
        },
        description="A convenience for small arrays; it forwards to the core with the caller's identity. For a model with several "
        "inputs, or one that takes text or images, use `:predict`.",
        body={
            JSON: media(
                "SimpleRequest",
                nested={"input": [[5.1, 3.5, 1.4, 0.2]], "model": "my_model"},
                flat={"input": [5.1, 3.5, 1.4, 0.2], "shape": [1, 4], "model": "my_model"},
            )
        },
    )


def _health() -> dict[str, Any]:
    is_ready = ok("Ready.", {JSON: media("Readiness", ready={"status": "ready", "core": "SERVING"})})
    content = {
        JSON: media(
            "Readiness",
            not_ready={"status": "not ready", "core": "NOT_SERVING"},
            unreachable={"status": "not ready", "core": "UNREACHABLE"},
        )
    }
    return operation(
        "health",
        "health",
        "Does the core answer inference requests?",
        {**is_ready, "503": {"description": "Not ready.", "content": content}},
        description="For readiness probes. Answers within about a second even when the core does not.",
    )


def _live() -> dict[str, Any]:
    answer = ok("The facade runs.", {JSON: media("Liveness", live={"status": "live"})})
    return operation("health", "health_live", "Does the facade run?", answer, description="For liveness probes. Does not ask the core.")
