"""Every error status of every door, with an example of its true body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_V1: Mapping[int, tuple[int, str, str]] = {
    400: (
        3,
        "The request contradicts the protocol or the model.",
        "inference input 'input' data-type is 'INT32', but model 'efficientnet_lite0' expects 'FP32'",
    ),
    403: (7, "This door does not offer it.", "management is not offered here; ask the node's own listener"),
    404: (5, "No such model or version.", "Request for unknown model: 'nosuch' is not found"),
    409: (6, "The name is taken.", "shared memory region 'example' already in manager"),
    429: (
        8,
        "Too much is waiting for this model, or a limit was hit: the text names it.",
        "too many rows are waiting: 1024 and 1 more exceed max_queue_rows 1024",
    ),
    499: (1, "The caller left.", "the caller left"),
    500: (13, "The engine failed on an accepted request.", "the model failed on this request"),
    501: (12, "This server does not offer it.", "Content-Encoding 'br' is not offered: send the body as it is"),
    503: (14, "The model or the server is not ready. Trying again later helps.", "the server is shutting down and takes no new work"),
    504: (4, "The time ran out before the answer was there.", "the deadline passed before the model could run the request"),
}
"""HTTP status: google.rpc.Code, meaning, message."""

_ONLY_V2 = frozenset({409})

_TOO_LARGE = (8, "The body is larger than this server takes.", "limits.max_message_bytes: the body is larger than 67108864 bytes")


_RETRY_AFTER: Mapping[str, Any] = {
    "description": "Seconds until what waits now will have run. Not there where a size limit was hit.",
    "schema": {"type": "integer", "minimum": 1},
}


def error_responses() -> dict[str, Any]:
    """``components.responses``: ``V1Error400``, ``V2Error400``, …"""
    table = {**_V1, 413: _TOO_LARGE}
    responses: dict[str, Any] = {}
    for status, (code, meaning, message) in table.items():
        if status not in _ONLY_V2:
            responses[f"V1Error{status}"] = _response(meaning, "V1Error", {"code": code, "message": message, "details": []})
        responses[f"V2Error{status}"] = _response(meaning, "V2Error", {"error": message})
    for door in ("V1", "V2"):
        responses[f"{door}Error429"]["headers"] = {"Retry-After": _RETRY_AFTER}
    return responses


def v1_errors(*statuses: int) -> dict[str, Any]:
    """References for an operation whose errors are google.rpc.Status."""
    return {str(status): {"$ref": f"#/components/responses/V1Error{status}"} for status in statuses}


def v2_errors(*statuses: int) -> dict[str, Any]:
    """References for an operation of ``/v2``."""
    return {str(status): {"$ref": f"#/components/responses/V2Error{status}"} for status in statuses}


INFER_ERRORS = (400, 404, 413, 429, 499, 500, 501, 503, 504)
"""What an inference may answer."""

MODEL_ERRORS = (400, 404, 503, 504)
"""What a question about a model may answer."""


def _response(meaning: str, schema: str, example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "description": meaning,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": example}},
    }
