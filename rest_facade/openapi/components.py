"""``components``: every schema by name, and the parameters."""

from __future__ import annotations

from rest_facade.openapi.facade_schemas import FACADE_SCHEMAS
from rest_facade.openapi.management_schemas import MANAGEMENT_SCHEMAS
from rest_facade.openapi.predict_schemas import PREDICT_SCHEMAS
from rest_facade.openapi.schema import Schema
from rest_facade.openapi.stream_schemas import GENERATE_SCHEMAS, STREAM_MESSAGES
from rest_facade.openapi.v1_messages import V1_MESSAGES
from rest_facade.openapi.v2_schemas import V2_SCHEMAS

SCHEMAS: dict[str, Schema] = {
    **V1_MESSAGES,
    **STREAM_MESSAGES,
    **PREDICT_SCHEMAS,
    **V2_SCHEMAS,
    **GENERATE_SCHEMAS,
    **MANAGEMENT_SCHEMAS,
    **FACADE_SCHEMAS,
}

PARAMETERS: dict[str, Schema] = {
    "model": {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "The model's name.",
        "schema": {"type": "string"},
        "example": "efficientnet_lite0",
    },
    "version": {
        "name": "version",
        "in": "path",
        "required": True,
        "description": "The version.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
        "example": "1",
    },
    "region": {
        "name": "region",
        "in": "path",
        "required": True,
        "description": "The shared memory region's name.",
        "schema": {"type": "string"},
        "example": "example",
    },
    "top_k": {
        "name": "top_k",
        "in": "query",
        "description": "How many of the best classes to name. Left out means 5; -1 means none.",
        "schema": {"type": "integer"},
    },
    "outputs": {
        "name": "outputs",
        "in": "query",
        "description": "For uploads: names of outputs to answer in full, with commas between.",
        "schema": {"type": "string"},
    },
}
