"""More models than the budget holds, at the doors: nobody who asks sees whether a model was loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import grpc
import httpx
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc
from tests.support.models import write_badload, write_plus
from tests.support.stack import TRANSPORTS, Stack, running_stack

MODELS = 6
ENVIRON = {
    "TENSORGATE_MODELS_STARTUP": "on_demand",
    "TENSORGATE_MODELS_MAX_RESIDENT_MODELS": "2",
    "TENSORGATE_MODELS_PINNED": "plus1",
    "TENSORGATE_EDGE_MANAGEMENT": "true",
}


@pytest.fixture(scope="module", params=TRANSPORTS)
def stack(request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """``plus1`` to ``plus6``, each of which adds its number, which is its version too, and a model that cannot be loaded."""
    repository: Path = tmp_path_factory.mktemp("models")
    for number in range(1, MODELS + 1):
        write_plus(repository, number, f"plus{number}")
    write_badload(repository)
    with running_stack(free_port, request.param, repository, ENVIRON) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.addresses.edge_url, timeout=30.0) as rest:
        yield rest


def index(client: httpx.Client) -> dict[str, str]:
    """State and reason by model."""
    items = client.post("/v2/repository/index").json()
    return {item["name"]: f"{item['state']} {item.get('reason', '')}".strip() for item in items}


def answer(client: httpx.Client, number: int, door: str = "v2") -> float:
    if door == "v2":
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]}
        reply = client.post(f"/v2/models/plus{number}/infer", json=body)
        assert reply.status_code == 200, reply.text
        return float(reply.json()["outputs"][0]["data"][0])
    reply = client.post(f"/v1/models/plus{number}:predict", json={"instances": [[0.5]]})
    assert reply.status_code == 200, reply.text
    return float(reply.json()["predictions"][0][0])


def test_everything_is_ready_and_only_what_is_pinned_is_loaded(stack: Stack, client: httpx.Client) -> None:
    for number in range(1, MODELS + 1):
        assert client.get(f"/v2/models/plus{number}/versions/{number}/ready").status_code == 200
    assert client.get("/v2/health/ready").status_code == 200
    states = index(client)
    assert states["plus1"] == "READY"
    assert list(states.values()).count("READY on demand") >= MODELS - 2
    with grpc.insecure_channel(stack.addresses.node_grpc) as channel:
        stub = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert all(stub.ModelReady(pb.ModelReadyRequest(name=f"plus{number}"), timeout=30).ready for number in range(1, MODELS + 1))
        metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="plus2"), timeout=30)
        assert (metadata.versions, [item.name for item in metadata.inputs]) == (["2"], ["X"])
        assert stub.ModelConfig(pb.ModelConfigRequest(name="plus2"), timeout=30).config.max_batch_size == 8


def test_many_callers_of_many_models(client: httpx.Client) -> None:
    asked = list(product(range(1, MODELS + 1), ("v2", "v1"))) * 5
    before = {number: served(client, number) for number in range(1, MODELS + 1)}
    with ThreadPoolExecutor(12) as callers:
        answers = list(callers.map(lambda item: answer(client, *item), asked))
    assert answers == [number + 0.5 for number, _ in asked]
    for number, count in before.items():
        assert served(client, number) - count == 10, "counters outlive the loads"
    states = index(client)
    loaded = [name for name, state in states.items() if state == "READY"]
    assert len(loaded) == 2
    assert "plus1" in loaded


def served(client: httpx.Client, number: int) -> int:
    """Requests that the model answered since the start."""
    stats = client.get(f"/v2/models/plus{number}/stats").json()["model_stats"] if known(client, number) else []
    return sum(int(item["inference_stats"]["success"].get("count", 0)) for item in stats)


def known(client: httpx.Client, number: int) -> bool:
    return client.get(f"/v2/models/plus{number}/stats").status_code == 200


def test_a_model_that_cannot_come_says_why(client: httpx.Client) -> None:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]}
    reply = client.post("/v2/models/badload/infer", json=body)
    assert reply.status_code == 503
    assert "could not be loaded on demand: model.onnx is not" in reply.json()["error"]
    assert "badload" not in [name for name, state in index(client).items() if state == "READY"]
    assert answer(client, 3) == 3.5


def test_unloaded_by_request_is_gone(client: httpx.Client) -> None:
    answer(client, 4)
    answer(client, 5)
    assert index(client)["plus4"] == "READY on demand"
    assert client.post("/v2/repository/models/plus4/unload").status_code == 200
    assert client.get("/v2/models/plus4/ready").status_code == 404
    assert client.post("/v2/repository/models/plus4/load").status_code == 200
    assert answer(client, 4) == 4.5
