"""Answers of the REST doors as ``google.api.HttpBody``, which the edge hands on as they are."""

from __future__ import annotations

from typing import Any

import orjson
from google.api.httpbody_pb2 import HttpBody

from core_grpc.rpc.content_types import JSON_TYPE
from core_grpc.rpc.rest_answers import RestBody


def http_body(body: RestBody) -> HttpBody:
    """A body that is already written."""
    return HttpBody(content_type=body.content_type, data=body.data)


def http_json(answer: Any) -> HttpBody:
    """A small answer, written as JSON."""
    return HttpBody(content_type=JSON_TYPE, data=orjson.dumps(answer))
