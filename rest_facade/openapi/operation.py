"""How an operation is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_facade.openapi.schema import Schema, ref

JSON = "application/json"

IMAGE_TYPES = ("image/jpeg", "image/png")
"""Bodies that are one encoded image. Others that Pillow reads work too; these are the usual ones."""


def operation(
    tag: str,
    name: str,
    summary: str,
    responses: Mapping[str, Any],
    *,
    description: str = "",
    parameters: Sequence[str] = (),
    own_parameters: Sequence[Schema] = (),
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One operation. ``parameters`` are names of shared ones; ``body`` maps content types to media types."""
    described: dict[str, Any] = {"tags": [tag], "operationId": name, "summary": summary, "responses": dict(responses)}
    if description:
        described["description"] = description
    listed = [{"$ref": f"#/components/parameters/{parameter}"} for parameter in parameters] + list(own_parameters)
    if listed:
        described["parameters"] = listed
    if body is not None:
        described["requestBody"] = {"required": True, "content": dict(body)}
    return described


def media(schema: str | Schema, **examples: Any) -> dict[str, Any]:
    """A media type: the schema (or the name of one), and examples by name. ``a_photo`` becomes the summary "a photo"."""
    described: dict[str, Any] = {"schema": ref(schema) if isinstance(schema, str) else schema}
    if examples:
        described["examples"] = {name: {"summary": name.replace("_", " "), "value": value} for name, value in examples.items()}
    return described


def ok(description: str, content: Mapping[str, Any], headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The response 200."""
    response: dict[str, Any] = {"description": description, "content": dict(content)}
    if headers:
        response["headers"] = dict(headers)
    return {"200": response}


def image_bodies() -> dict[str, Any]:
    """Uploads: a form, or the image alone; a recording for models that take BYTES."""
    file: Schema = {"type": "string", "format": "binary"}
    kinds = (*IMAGE_TYPES, "audio/wav")
    return {"multipart/form-data": media("Upload"), **{kind: media({**file, "contentMediaType": kind}) for kind in kinds}}
