"""The words that the schemas are written in."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """A reference to a schema below."""
    return {"$ref": f"#/components/schemas/{name}"}


def text(description: str, **more: Any) -> Schema:
    """A string."""
    return {"type": "string", "description": description, **more}


def int32(description: str, **more: Any) -> Schema:
    """An integer of 32 bits."""
    return {"type": "integer", "format": "int32", "description": description, **more}


def number(description: str, **more: Any) -> Schema:
    """Protobuf JSON writes what JSON has no number for as a string."""
    special = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}
    return {"anyOf": [{"type": "number", "format": "float"}, special], "description": description, **more}


def list_of(items: Schema, description: str, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, "description": description, **more}


def object_of(description: str, properties: Schema, required: tuple[str, ...] = (), **more: Any) -> Schema:
    """An object."""
    schema = {"type": "object", "description": description, "properties": properties, **more}
    return {**schema, "required": list(required)} if required else schema


DATATYPES = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]

DATATYPE = text("The Open Inference Protocol datatype.", enum=DATATYPES)
SHAPE = list_of({"type": "integer", "minimum": 0}, "Row-major; the product is the number of values.")
INT64 = {"anyOf": [{"type": "string", "pattern": "^-?[0-9]+$"}, {"type": "integer"}]}
BASE64 = {"type": "string", "contentEncoding": "base64"}
