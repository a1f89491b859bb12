"""Triton's extensions where they are refused, and what stock clients (tests/triton) do not look at: traces, JSON, who may name a region."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory as SharedObject
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from core_grpc.types import Datatype
from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc
from tests.support.models import write_id, write_probs
from tests.support.stack import TRANSPORTS, Stack, running_stack

ALLOWED = {"TENSORGATE_SERVER_SHARED_MEMORY": "true", "TENSORGATE_EDGE_MANAGEMENT": "true"}
TRACE_FILE = "traces.json"


@pytest.fixture(scope="module", params=TRANSPORTS)
def allowing(
    request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Path]]:
    """A gateway that allows all of it, and the folder of its traces."""
    repository, traces = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("traces")
    write_probs(repository)
    environ = {**ALLOWED, "TENSORGATE_SERVER_TRACE_FILE": str(traces / TRACE_FILE)}
    with running_stack(free_port, request.param, repository, environ) as running:
        yield running, traces


INFER = {"id": "r1", "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def test_a_traced_request_is_in_the_file(allowing: tuple[Stack, Path]) -> None:
    stack, traces = allowing
    on = {"trace_level": ["TIMESTAMPS"], "trace_rate": 1, "trace_count": 1, "log_frequency": 1}
    with httpx.Client(base_url=stack.addresses.edge_url, timeout=10.0) as client:
        assert client.post("/v2/models/probs/trace/setting", json=on).status_code == 200
        for _ in range(2):
            assert client.post("/v2/models/probs/infer", json=INFER).status_code == 200
        assert client.get("/v2/models/probs/trace/setting").json()["trace_count"] == "0"
        off = dict.fromkeys(on)
        assert client.post("/v2/models/probs/trace/setting", json=off).json()["trace_level"] == ["OFF"]
    ends = time.monotonic() + 5
    while not (files := list(traces.iterdir())) and time.monotonic() < ends:
        time.sleep(0.02)
    (file,) = files
    described, timed = json.loads(file.read_text())
    assert (described["model_name"], described["model_version"], described["request_id"]) == ("probs", 1, "r1")
    assert described["id"] == timed["id"]
    moments = [item["ns"] for item in timed["timestamps"]]
    names = [item["name"] for item in timed["timestamps"]]
    assert names == ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"]
    assert moments == sorted(moments)


def test_classification_in_json(allowing: tuple[Stack, Path]) -> None:
    stack, _ = allowing
    wanted = {**INFER, "outputs": [{"name": "scores", "parameters": {"classification": 1}}]}
    answer = httpx.post(f"{stack.addresses.edge_url}/v2/models/probs/infer", json=wanted, timeout=10.0).json()
    assert answer["outputs"] == [{"name": "scores", "datatype": "BYTES", "shape": [1, 1], "data": ["4.000000:3:elk"]}]


REGISTER = {"key": "tensorgate_no_such_key", "offset": 0, "byte_size": 64}
HANDLE = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 64}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("system", {**REGISTER, "key": "../x"}, 400),
        ("system", {**REGISTER, "key": ""}, 400),
        ("system", {**REGISTER, "key": "/dev/mem"}, 400),
        ("system", REGISTER, 400),
        ("system", {**REGISTER, "byte_size": 0}, 400),
        ("system", {**REGISTER, "offset": -1}, 400),
        ("system", {**REGISTER, "offset": (1 << 64) - 1}, 400),
        ("system", {"key": "x"}, 400),
        ("cuda", HANDLE, 400),
        ("cuda", {**HANDLE, "raw_handle": {"b64": "A" * 86 + "=="}}, 501),
        ("cuda", {**HANDLE, "raw_handle": "AAAA"}, 400),
    ],
)
def test_a_registration_that_cannot_be_is_refused(allowing: tuple[Stack, Path], path: str, body: dict[str, Any], status: int) -> None:
    stack, _ = allowing
    answer = httpx.post(f"{stack.addresses.edge_url}/v2/{path}sharedmemory/region/r/register", json=body, timeout=10.0)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert "/dev/shm" not in answer.text
    assert not httpx.get(f"{stack.addresses.edge_url}/v2/{path}sharedmemory/status", timeout=10.0).json()


def test_what_is_allowed_is_announced(allowing: tuple[Stack, Path], stack: Stack) -> None:
    shared = {"system_shared_memory", "cuda_shared_memory"}
    assert set(allowing[0].get("/v2").json()["extensions"]) >= {"classification", "sequence", "trace", "logging", *shared}
    assert not set(stack.get("/v2").json()["extensions"]) & shared


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/r/register"),
        ("POST", "/v2/cudasharedmemory/unregister"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/trace/setting"),
    ],
)
def test_the_edge_refuses_management_unless_allowed(stack: Stack, method: str, path: str) -> None:
    answer = httpx.request(method, stack.addresses.edge_url + path, timeout=10.0)
    assert answer.status_code == 403
    assert "management" in answer.json()["error"]


@pytest.fixture(scope="module", params=TRANSPORTS)
def at_node_only(request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Shared memory at the node's own listener, and an edge that does not offer management."""
    repository = tmp_path_factory.mktemp("models")
    write_id(repository, Datatype.BYTES)
    with running_stack(free_port, request.param, repository, {"TENSORGATE_SERVER_SHARED_MEMORY": "true"}) as running:
        yield running


@pytest.mark.parametrize("forged", [{}, {"x-tensorgate-management": "allowed"}])
def test_regions_of_others_are_out_of_reach_through_the_edge(at_node_only: Stack, forged: dict[str, str]) -> None:
    secret = SharedObject(create=True, size=20)
    try:
        assert secret.buf is not None
        secret.buf[:10] = b"\x06\0\0\0secret"
        with grpc.insecure_channel(at_node_only.addresses.node_grpc) as channel:
            node = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
            node.SystemSharedMemoryRegister(pb.SystemSharedMemoryRegisterRequest(name="theirs", key=secret.name, byte_size=20), timeout=10)
            answer = node.ModelInfer(shared_request(), timeout=10)
            # Read from the region and written to it: the request's place is echoed, with the size that was needed.
            assert list(answer.raw_output_contents) == [b""]
            assert {key: value.WhichOneof("parameter_choice") for key, value in answer.outputs[0].parameters.items()} == ECHOED
            assert bytes(secret.buf[10:20]) == bytes(secret.buf[:10])
        with grpc.insecure_channel(at_node_only.addresses.edge_grpc) as channel:
            edge = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                edge.ModelInfer(shared_request(), timeout=10, metadata=tuple(forged.items()))
            (streamed,) = edge.ModelStreamInfer(iter([shared_request()]), timeout=10, metadata=tuple(forged.items()))
        assert "the edge's setting management" in streamed.error_message
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        body = {"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1, 1], "parameters": PLACE}]}
        refused = httpx.post(f"{at_node_only.addresses.edge_url}/v2/models/id_bytes/infer", json=body, headers=forged, timeout=10.0)
        assert refused.status_code == 501
        assert "the edge's setting management" in refused.json()["error"]
        with grpc.insecure_channel(at_node_only.addresses.node_grpc) as channel:
            grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel).SystemSharedMemoryUnregister(
                pb.SystemSharedMemoryUnregisterRequest(), timeout=10
            )
    finally:
        secret.close()
        secret.unlink()


ECHOED = {"shared_memory_region": "string_param", "shared_memory_offset": "int64_param", "shared_memory_byte_size": "int64_param"}
PLACE = {"shared_memory_region": "theirs", "shared_memory_byte_size": 10}


def shared_request() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="id_bytes")
    shared = request.inputs.add(name="X", datatype="BYTES", shape=[1, 1])
    shared.parameters["shared_memory_region"].string_param = "theirs"
    shared.parameters["shared_memory_byte_size"].int64_param = 10
    output = request.outputs.add(name="Y")
    output.parameters["shared_memory_region"].string_param = "theirs"
    output.parameters["shared_memory_offset"].int64_param = 10
    output.parameters["shared_memory_byte_size"].int64_param = 10
    return request
