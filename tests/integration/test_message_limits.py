"""``limits.max_message_bytes`` raised for tensors of 64 MiB: they pass every door, and a byte above the limit is refused alike on each."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from core_grpc.types import Datatype
from protos.inference import grpc_service_pb2 as pb
from tests.support.models import write_id, write_identity
from tests.support.rest import post_binary
from tests.support.stack import TRANSPORTS, Stack, running_stack
from tests.support.wire import GRPC_DOORS, RESOURCE_EXHAUSTED, infer, rest_error

LIMIT = 80 << 20
SIZE = 64 << 20
EVERY_GRPC_DOOR = pytest.mark.parametrize("door", GRPC_DOORS)
REST_DOORS = {
    "/v2/models/id_uint8/infer": {"inputs": [{"name": "X", "datatype": "UINT8", "shape": [1, 1], "data": [7]}]},
    "/v1/models/id_uint8:predict": {"inputs": [[7]]},
    "/v1/predict": {"model": "id_uint8", "inputs": [{"name": "X", "shape": [1, 1], "int_values": [7]}]},
    "/predict": {"model": "id_uint8", "input": [[7]]},
}
EVERY_REST_DOOR = pytest.mark.parametrize("path", REST_DOORS)


@pytest.fixture(scope="module", params=TRANSPORTS)
def large(request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway that takes messages of 80 MiB."""
    repository = tmp_path_factory.mktemp("models")
    write_id(repository, Datatype.UINT8)
    write_identity(repository, "bytes", {"X": ("BYTES", [-1, 1])}, "max_batch_size = 8\n")
    with running_stack(free_port, request.param, repository, {"TENSORGATE_LIMITS_MAX_MESSAGE_BYTES": str(LIMIT)}) as running:
        yield running


def _request(size: int, padding: int = 0) -> pb.ModelInferRequest:
    inputs = [{"name": "X", "datatype": "UINT8", "shape": [1, size]}]
    message = pb.ModelInferRequest(model_name="id_uint8", inputs=inputs, raw_input_contents=[bytes(size)])
    if padding:
        message.parameters["pad"].string_param = "x" * padding
    return message


def _request_of(total: int) -> pb.ModelInferRequest:
    """A message of exactly ``total`` bytes whose answer is short."""
    padding = total - 100
    while (missing := total - _request(1, padding).ByteSize()) != 0:
        padding += missing
    return _request(1, padding)


def _body_of(path: str, total: int) -> bytes:
    return json.dumps(REST_DOORS[path]).encode().ljust(total)


@EVERY_GRPC_DOOR
def test_a_large_tensor_over_grpc(large: Stack, door: str) -> None:
    assert infer(large.addresses, door, _request(SIZE)).infer_response().raw_output_contents[0] == bytes(SIZE)


def test_a_large_tensor_over_binary_rest(large: Stack) -> None:
    reply = post_binary(large, "id_uint8", [("X", "UINT8", [1, SIZE], bytes(SIZE))], parameters={"binary_data_output": True})
    assert reply.status_code == 200, reply.text[:500]
    assert reply.content.endswith(bytes(SIZE))


def test_a_large_element_over_predict(large: Stack) -> None:
    element = base64.b64encode(bytes(SIZE // 4 * 3)).decode()
    reply = httpx.post(f"{large.addresses.edge_url}/v1/models/bytes:predict", json={"inputs": [[{"b64": element}]]}, timeout=40)
    assert reply.status_code == 200, reply.text[:500]
    assert len(reply.content) > SIZE // 4 * 3


@EVERY_GRPC_DOOR
def test_the_limit_over_grpc_is_exact(large: Stack, door: str) -> None:
    assert infer(large.addresses, door, _request_of(LIMIT)).code == 0
    answer = infer(large.addresses, door, _request_of(LIMIT + 1))
    assert answer.code == RESOURCE_EXHAUSTED
    assert str(LIMIT) in answer.text
    assert infer(large.addresses, door, _request(4)).code == 0


@EVERY_REST_DOOR
def test_the_limit_over_rest(large: Stack, path: str) -> None:
    """A kibibyte is left for what the core is told beside the body: the model, the path, the content type."""
    url = large.addresses.edge_url + path
    headers = {"content-type": "application/json"}
    reply = httpx.post(url, content=_body_of(path, LIMIT - 1024), headers=headers, timeout=40)
    assert reply.status_code == 200, reply.text[:500]
    text = rest_error(httpx.post(url, content=_body_of(path, LIMIT + 1), headers=headers, timeout=40), 413)
    assert "max_message_bytes" in text or path == "/predict"
    assert str(LIMIT) in text
