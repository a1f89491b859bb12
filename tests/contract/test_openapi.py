"""``/openapi.json``: valid, strict, and true to what is served."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.api import annotations_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.json_format import Parse
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from PIL import Image
from starlette.routing import Route

from protos.tensorgate.rest.v1 import rest_pb2
from protos.tensorgate.v1 import inference_pb2
from rest_facade.app import create_app
from rest_facade.errors import HTTP_STATUS
from rest_facade.openapi import openapi_document, openapi_json
from rest_facade.schemas import predict_body_from_json
from rest_facade.settings import FacadeSettings

DOCUMENT = openapi_document()

PAGES = {"/docs", "/redoc", "/openapi.json"}
"""Routes for people; what is described is the API."""


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, described in item.items():
            yield method.upper(), path, described


def bindings(service: ServiceDescriptor) -> Iterator[tuple[str, str, str]]:
    """RPC, method and path of each URL of a service."""
    for method in service.methods:
        rule = method.GetOptions().Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings):
            if verb := binding.WhichOneof("pattern"):
                yield method.name, verb.upper(), getattr(binding, verb)


def resolved(node: Any) -> Any:
    if isinstance(node, dict) and "$ref" in node:
        target: Any = DOCUMENT
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return target
    return node


def media_types() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Where, content type and media type, of every request and response."""
    for method, path, described in operations():
        where = f"{method} {path}"
        for content_type, media in described.get("requestBody", {}).get("content", {}).items():
            yield where, content_type, media
        for status, response in described["responses"].items():
            for content_type, media in resolved(response).get("content", {}).items():
                yield f"{where} {status}", content_type, media


def examples() -> Iterator[Any]:
    for where, content_type, media in media_types():
        named = {name: example["value"] for name, example in media.get("examples", {}).items()}
        if "example" in media:
            named["example"] = media["example"]
        for name, value in named.items():
            yield pytest.param(media["schema"], value, id=f"{where} {content_type} {name}")


def test_is_valid_openapi() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    validate(DOCUMENT)


def test_is_strict_json() -> None:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    assert json.loads(openapi_json(), parse_constant=refuse) == DOCUMENT


def test_describes_every_url_of_the_contract_and_no_other() -> None:
    services = (inference_pb2.DESCRIPTOR.services_by_name["InferenceService"], rest_pb2.DESCRIPTOR.services_by_name["Rest"])
    in_contract = [binding for service in services for binding in bindings(service)]
    offered = {(verb, path) for _, verb, path in in_contract}
    described = {(method, path) for method, path, _ in operations() if path.startswith(("/v1", "/v2"))}
    assert described == offered


def test_describes_every_route_of_the_facade_and_no_other() -> None:
    routes = _routes(create_app(FacadeSettings()).routes)
    assert {path for _, path in routes} >= PAGES
    served = {(method, path) for method, path in routes if path not in PAGES and method != "HEAD"}
    described = {(method, path) for method, path, _ in operations() if not path.startswith(("/v1", "/v2"))}
    assert described == served


def _routes(routes: list[Any]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for route in routes:
        if isinstance(route, Route) or hasattr(route, "methods"):
            found |= {(method, route.path) for method in route.methods or ()}
        elif inner := getattr(getattr(route, "original_router", None), "routes", None):
            found |= _routes(inner)
    return found


def test_operation_ids_are_unique_and_every_operation_is_summarised() -> None:
    ids = [described["operationId"] for _, _, described in operations()]
    assert len(ids) == len(set(ids))
    assert all(described["summary"] for _, _, described in operations())


def test_path_parameters_are_those_of_the_path() -> None:
    for _, path, described in operations():
        listed = [resolved(parameter) for parameter in described.get("parameters", [])]
        assert {item["name"] for item in listed if item["in"] == "path"} == set(re.findall(r"\{(\w+)\}", path))


def test_every_component_is_used() -> None:
    text = openapi_json().decode()
    for kind, components in DOCUMENT["components"].items():
        for name in components:
            assert f'"#/components/{kind}/{name}"' in text, name


@pytest.mark.parametrize(("schema", "value"), list(examples()))
def test_examples_fit_their_schemas(schema: dict[str, Any], value: Any) -> None:
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def test_errors_are_in_the_form_of_their_door_with_the_canonical_status() -> None:
    for _, path, described in operations():
        for status, response in described["responses"].items():
            if status == "200" or path == "/health":
                continue
            example = resolved(response)["content"]["application/json"]["example"]
            if path.startswith("/v2"):
                assert set(example) == {"error"}
            else:
                assert set(example) == {"code", "message", "details"}
                # 413 is HTTP's own; the canonical table has no row for it.
                assert status in {str(HTTP_STATUS[example["code"]]), "413"}


KINDS = {
    FieldDescriptor.CPPTYPE_STRING: {"string"},
    FieldDescriptor.CPPTYPE_ENUM: {"string"},
    FieldDescriptor.CPPTYPE_INT32: {"integer"},
    FieldDescriptor.CPPTYPE_INT64: {"string", "integer"},
    FieldDescriptor.CPPTYPE_UINT64: {"string", "integer"},
    FieldDescriptor.CPPTYPE_BOOL: {"boolean"},
    FieldDescriptor.CPPTYPE_FLOAT: {"number", "string"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"number", "string"},
}
"""What protobuf JSON writes for each kind of field."""


@pytest.mark.parametrize(
    "message",
    [
        descriptor
        for name, descriptor in inference_pb2.DESCRIPTOR.message_types_by_name.items()
        if name in DOCUMENT["components"]["schemas"]
    ],
    ids=lambda descriptor: descriptor.name,
)
def test_schemas_named_after_a_message_have_its_fields(message: Descriptor) -> None:
    schema = DOCUMENT["components"]["schemas"][message.name]
    assert list(schema["properties"]) == [field.name for field in message.fields]
    for field in message.fields:
        described = schema["properties"][field.name]
        if field.is_repeated:
            assert described["type"] == "array", field.name
            described = described["items"]
        if field.message_type is not None:
            assert described["$ref"] == f"#/components/schemas/{field.message_type.name}"
        else:
            kinds = {described["type"]} if "type" in described else {option["type"] for option in described["anyOf"]}
            assert kinds == KINDS[field.cpp_type], field.name
        if field.enum_type is not None:
            assert described["enum"] == [value.name for value in field.enum_type.values]


def test_examples_of_v1_predict_are_protobuf_json() -> None:
    for example in DOCUMENT["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["examples"].values():
        Parse(json.dumps(example["value"]), inference_pb2.PredictRequest())


def test_examples_of_predict_are_read_by_the_facade() -> None:
    for example in DOCUMENT["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["examples"].values():
        assert predict_body_from_json(json.dumps(example["value"]).encode()).model == "my_model"


def test_the_image_in_the_examples_is_one() -> None:
    text = openapi_json().decode()
    images = set(re.findall(r'"b64":"([^"]+)"|"bytes_values":\["([^"]+)"\]', text))
    encoded = {part for pair in images for part in pair if part}
    assert len(encoded) == 1
    assert Image.open(io.BytesIO(base64.b64decode(encoded.pop()))).size == (8, 8)


def test_addresses_are_relative_and_keep_a_prefix() -> None:
    assert DOCUMENT["servers"][0]["url"] == "/"
    prefixed = openapi_document("https://gate.example/tensors/")
    assert prefixed["servers"][0]["url"] == "/tensors"
    assert "curl -F image=@photo.jpg https://gate.example/tensors/v1/models/" in prefixed["info"]["description"]


async def test_is_served(tmp_path: Path) -> None:
    settings = FacadeSettings(demo_directory=tmp_path, public_url="https://gate.example")
    app = await asyncio.to_thread(create_app, settings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        response = await client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.content == openapi_json("https://gate.example")
