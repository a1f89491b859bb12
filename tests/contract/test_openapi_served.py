"""``/openapi.json`` against the gateway it describes: every example of a request is sent through the edge and answers as described."""

from __future__ import annotations

import base64
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from rest_facade.openapi import openapi_document
from rest_facade.openapi.examples import TINY_IMAGE
from tests.support.models import write_identity
from tests.support.programs import ROOT
from tests.support.stack import running_stack

DOCUMENT = openapi_document()
DEMO = "efficientnet_lite0"
OWN = "my_model"
WITHOUT_A_GPU = {"/v2/cudasharedmemory/region/{region}/status"}
"""Cannot answer 200 here."""
IMAGE = base64.b64decode(TINY_IMAGE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The demo model and the `my_model` that the examples speak of."""
    repository: Path = tmp_path_factory.mktemp("models")
    shutil.copytree(ROOT / "tensorgate" / "demo_models" / DEMO, repository / DEMO)
    write_identity(repository, OWN, {"x": ("FP32", [-1, 4])}, "max_batch_size = 8\n")
    allowing = {"TENSORGATE_EDGE_MANAGEMENT": "true", "TENSORGATE_SERVER_SHARED_MEMORY": "true"}
    with (
        running_stack(free_port, "grpcio", repository, allowing) as stack,
        httpx.Client(base_url=stack.addresses.edge_url, timeout=30.0) as client,
        shared_memory_object() as key,
    ):
        client.post("/v2/systemsharedmemory/region/example/register", json={"key": key, "byte_size": 8}).raise_for_status()
        yield client


@contextmanager
def shared_memory_object() -> Iterator[str]:
    """For the region that the document's parameter names."""
    key = f"tensorgate-test-{os.getpid()}"
    path = Path("/dev/shm") / key
    path.write_bytes(b"12345678")
    try:
        yield key
    finally:
        path.unlink()


def resolved(node: Any) -> Any:
    while isinstance(node, dict) and "$ref" in node:
        target: Any = DOCUMENT
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def requests() -> Iterator[Any]:
    """Method, path with the model filled in, what to send: one for each content type and example."""
    for path, item in DOCUMENT["paths"].items():
        for method, described in item.items():
            if path in WITHOUT_A_GPU:
                continue
            for model, name, arguments in bodies(described):
                yield pytest.param(method, path, model, arguments, id=f"{method} {path} {name}".strip())


def bodies(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if "requestBody" not in described:
        yield DEMO, "", {}
        return
    for content_type, media in described["requestBody"]["content"].items():
        for name, example in media.get("examples", {}).items():
            yield DEMO if "image" in name else OWN, name, {"json": example["value"]}
        if content_type.startswith("image/"):
            yield DEMO, content_type, {"content": IMAGE, "headers": {"content-type": content_type}}
        if content_type == "multipart/form-data":
            yield DEMO, content_type, {"files": {"image": ("photo.png", IMAGE, "image/png")}}


def check_described(response: httpx.Response, described: dict[str, Any]) -> None:
    answer = resolved(described["responses"][str(response.status_code)])
    media = answer["content"][response.headers["content-type"].partition(";")[0]]
    Draft202012Validator({**media["schema"], "components": DOCUMENT["components"]}).validate(value_of(response))


def value_of(response: httpx.Response) -> Any:
    return response.json() if response.headers["content-type"].startswith("application/json") else response.text


@pytest.mark.parametrize(("method", "path", "model", "arguments"), list(requests()))
def test_what_is_described_is_served(edge: httpx.Client, method: str, path: str, model: str, arguments: dict[str, Any]) -> None:
    path_here = path.replace("{model}", model).replace("{version}", "1").replace("{region}", "example")
    response = edge.request(method, path_here, **arguments)
    assert response.status_code == 200, response.text
    if "unload" in path:
        # The other tests want it, whichever comes next.
        edge.post(f"/v2/repository/models/{model}/load").raise_for_status()
    check_described(response, DOCUMENT["paths"][path][method])


@pytest.mark.parametrize(("method", "path", "model", "arguments"), [case for case in requests() if "{model}" in case.values[1]])
def test_an_unknown_model_answers_as_described(edge: httpx.Client, method: str, path: str, model: str, arguments: dict[str, Any]) -> None:
    del model
    response = edge.request(method, path.replace("{model}", "nosuch").replace("{version}", "1"), **arguments)
    assert response.status_code == 404
    check_described(response, DOCUMENT["paths"][path][method])


def test_the_demo_model_is_as_the_examples_show_it(edge: httpx.Client) -> None:
    for path, content in (("/v1/models/{model}", "GetModelResponse"), ("/v2/models/{model}", "V2ModelMetadata")):
        described = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        assert described["schema"]["$ref"].endswith(content)
        assert edge.get(path.replace("{model}", DEMO)).json() == described["examples"]["demo"]["value"]


def test_the_description_is_served_through_the_edge(edge: httpx.Client) -> None:
    served = edge.get("/openapi.json").json()
    assert served["paths"] == DOCUMENT["paths"]
    assert served["servers"][0]["url"] == "/"
