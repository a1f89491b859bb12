"""gzip and deflate over real sockets: what stock clients offer, what curl does, and what only an attacker sends."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from core_grpc.rpc.compression import compressed
from protos.inference import grpc_service_pb2 as oip
from tests.doors.test_vectors import GOOD, assert_answers
from tests.support.doors import DOORS
from tests.support.programs import descendants
from tests.support.raw_grpc import framed, raw_call
from tests.support.stack import Stack

SCRIPT = Path(__file__).parent / "stock_client_scripts" / "compressing_clients.py"
INFER = "/inference.GRPCInferenceService/ModelInfer"
ACCEPT = {"grpc-accept-encoding": "identity,deflate,gzip"}
LIMIT = 64 << 20
BOMBS = 8
INFLATE: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def target(stack: Stack, door: str) -> str:
    return stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc


def infer_message(size: int = 3000) -> bytes:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, size]}
    message: bytes = oip.ModelInferRequest(model_name="id_fp32", inputs=[tensor], raw_input_contents=[bytes(4 * size)]).SerializeToString()
    return message


def infer_json(size: int = 3000) -> bytes:
    return json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, size], "data": [0.5] * size}]}).encode()


@pytest.mark.parametrize("door", ["node", "edge"])
def test_dep_07_stock_clients_may_compress(stack: Stack, door: str) -> None:
    http = stack.addresses.edge_grpc if door == "edge" else ""
    command = [sys.executable, str(SCRIPT), target(stack, door), http]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    over_http = {"http": 18, "http.aio": 18, "metadata": "id_fp32"} if http else {}
    assert json.loads(finished.stdout) == {"grpc": 9, "grpc.aio": 9, **over_http}


@pytest.mark.parametrize("door", ["node", "edge"])
@pytest.mark.parametrize("encoding", INFLATE)
def test_who_asks_gets_compressed_messages(stack: Stack, door: str, encoding: str) -> None:
    headers = {"response-compression-algorithm": encoding, **ACCEPT}
    answer = raw_call(target(stack, door), INFER, framed(infer_message()), headers)
    assert answer.headers["grpc-status"] == "0"
    assert answer.headers["grpc-encoding"] == encoding
    assert answer.body[0] == 1
    response = oip.ModelInferResponse.FromString(INFLATE[encoding](answer.body[5:]))
    assert response.raw_output_contents == [bytes(12_000)]


@pytest.mark.parametrize("door", ["node", "edge"])
@pytest.mark.parametrize("encoding", INFLATE)
def test_compressed_requests_are_read_and_answered_alike_where_the_transport_can(stack: Stack, door: str, encoding: str) -> None:
    body = framed(compressed(infer_message(), encoding), is_compressed=True)
    answer = raw_call(target(stack, door), INFER, body, {"grpc-encoding": encoding, **ACCEPT})
    assert answer.headers["grpc-status"] == "0"
    assert answer.body[0] == (stack.transport == "envoy")
    message = INFLATE[encoding](answer.body[5:]) if answer.body[0] else answer.body[5:]
    assert oip.ModelInferResponse.FromString(message).raw_output_contents == [bytes(12_000)]
    # Who does not accept it does not get it.
    answer = raw_call(target(stack, door), INFER, body, {"grpc-encoding": encoding})
    assert (answer.headers["grpc-status"], answer.body[0]) == ("0", 0)


@pytest.mark.parametrize("door", ["node", "edge"])
def test_messages_that_are_not_what_they_say(stack: Stack, door: str) -> None:
    message = gzip.compress(infer_message())
    for name, content, encoding in (
        ("damaged", b"\xff" * 40, "gzip"),
        ("cut short", message[:-5], "gzip"),
        ("of another encoding", message, "deflate"),
        ("without an encoding", message, "identity"),
        ("followed by more", message + b"xyz", "gzip"),
    ):
        answer = raw_call(target(stack, door), INFER, framed(content, is_compressed=True), {"grpc-encoding": encoding, **ACCEPT})
        assert answer.headers["grpc-status"] == "13", name
        assert answer.headers["grpc-message"], name
    assert_answers(DOORS["grpc edge raw"](stack.addresses, GOOD), GOOD)


@pytest.mark.parametrize("door", ["node", "edge"])
def test_an_encoding_that_is_not_offered(stack: Stack, door: str) -> None:
    answer = raw_call(target(stack, door), INFER, framed(infer_message()), {"grpc-encoding": "snappy", **ACCEPT})
    if stack.transport == "envoy":
        assert answer.headers["grpc-status"] == "12"
        assert answer.headers["grpc-accept-encoding"] == "identity, deflate, gzip"
        assert "snappy" in answer.headers["grpc-message"]
    else:  # The library refuses it before anybody is asked.
        assert answer.headers["grpc-status"] == "13"
    assert_answers(DOORS["grpc edge raw"](stack.addresses, GOOD), GOOD)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_messages_of_streams_are_compressed_one_by_one(stack: Stack, compression: grpc.Compression) -> None:
    symbols = ["inference.GRPCInferenceService", "x" * 20_000, "inference.GRPCInferenceService"]
    questions = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols]
    metadata = [("response-compression-algorithm", "gzip")]
    async with grpc.aio.insecure_channel(stack.addresses.node_grpc) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        plain = [answer async for answer in ask(iter(questions))]
        assert [answer async for answer in ask(iter(questions), compression=compression, metadata=metadata)] == plain
    assert [bool(answer.file_descriptor_response.file_descriptor_proto) for answer in plain] == [True, False, True]


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def node_pid(stack: Stack) -> int:
    """The process of the node: of the gateway's children the one that has the most memory."""
    return max(descendants(stack.program.pid), key=rss_bytes)


@contextmanager
def memory_is_bounded(stack: Stack) -> Iterator[None]:
    """The peak of the node's memory rises by no more than the limit for each bomb, and it still answers."""
    pid = node_pid(stack)
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = rss_bytes(pid)
    yield
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    assert peak - before < LIMIT * BOMBS, f"{(peak - before) >> 20} MiB"
    assert stack.get("/v2/health/live").status_code == 200


@pytest.fixture(scope="module", params=["gzip", "deflate"])
def bomb(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    """A GiB of spaces, in a few MB."""
    window = {"gzip": 31, "deflate": 15}[request.param]
    packer = zlib.compressobj(1, zlib.DEFLATED, window)
    return request.param, b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(1 << 10)), packer.flush()])


@pytest.mark.parametrize("door", ["node", "edge"])
def test_lim_05_grpc_bombs(stack: Stack, door: str, bomb: tuple[str, bytes]) -> None:
    encoding, data = bomb
    headers = {"grpc-encoding": encoding, **ACCEPT}

    def drop(_number: int) -> tuple[str, str]:
        answer = raw_call(target(stack, door), INFER, framed(data, is_compressed=True), headers).headers
        return answer["grpc-status"], answer["grpc-message"]

    with memory_is_bounded(stack), ThreadPoolExecutor(BOMBS) as pool:
        answers = list(pool.map(drop, range(BOMBS)))
    assert [status for status, _message in answers] == ["8"] * BOMBS, answers


@pytest.mark.parametrize("path", ["/v2/models/id_fp32/infer", "/v1/models/id_fp32:predict"])
def test_lim_05_http_bombs(stack: Stack, path: str, bomb: tuple[str, bytes]) -> None:
    encoding, data = bomb

    def drop(_number: int) -> int:
        return httpx.post(stack.addresses.edge_url + path, content=data, headers={"content-encoding": encoding}, timeout=20).status_code

    with memory_is_bounded(stack), ThreadPoolExecutor(BOMBS) as pool:
        began = time.monotonic()
        assert list(pool.map(drop, range(BOMBS))) == [429] * BOMBS
        assert time.monotonic() - began < 2 * BOMBS


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0", None),
        ("identity", None),
        ("br", None),
        ("", None),
        ("gzip;q=0.1, deflate", "deflate"),
    ],
)
def test_json_13_a_compressed_answer_is_labelled(stack: Stack, accepted: str, encoding: str | None, binary: bool) -> None:
    body = json.loads(infer_json(10_000)) | {"parameters": {"binary_data_output": binary}}
    url = f"{stack.addresses.edge_url}/v2/models/id_fp32/infer"
    with httpx.stream("POST", url, json=body, headers={"accept-encoding": accepted}, timeout=20) as reply:
        raw = b"".join(reply.iter_raw())
    assert reply.status_code == 200
    assert reply.headers.get("content-encoding") == encoding
    assert "accept-encoding" in reply.headers["vary"].lower()
    whole = INFLATE[encoding](raw) if encoding else raw
    length = int(reply.headers["inference-header-content-length"]) if binary else len(whole)
    assert json.loads(whole[:length])["outputs"][0]["shape"] == [1, 10_000]
    assert len(whole) - length == (40_000 if binary else 0)


def curl(*arguments: str) -> tuple[str, bytes]:
    """Headers and body."""
    finished = subprocess.run(["curl", "-sS", "-i", *arguments], capture_output=True, timeout=20, check=True)
    headers, _, body = finished.stdout.partition(b"\r\n\r\n")
    return headers.decode().lower(), body


@pytest.mark.parametrize("encoding", INFLATE)
def test_curl_compressed(stack: Stack, tmp_path: Path, encoding: str) -> None:
    edge = stack.addresses.edge_url
    body = tmp_path / "body"
    body.write_bytes(compressed(infer_json(), encoding))
    upload = ["--compressed", "-H", f"Content-Encoding: {encoding}", "--data-binary", f"@{body}"]
    headers, answer = curl(*upload, f"{edge}/v2/models/id_fp32/infer")
    assert headers.startswith("http/1.1 200")
    assert "content-encoding: gzip" in headers
    assert json.loads(answer)["outputs"][0]["data"] == [0.5] * 3000
    body.write_bytes(compressed(json.dumps({"inputs": [[0.5] * 3000]}).encode(), encoding))
    headers, answer = curl(*upload, f"{edge}/v1/models/id_fp32:predict")
    assert "content-encoding: gzip" in headers
    assert json.loads(answer)["outputs"]["Y"] == [[0.5] * 3000]


def test_nothing_but_answers_is_compressed(stack: Stack) -> None:
    edge = stack.addresses.edge_url
    for path in ("/v2", "/v2/health/live", "/v2/models/id_fp32", "/v2/models/" + "nope" * 50, "/v1/models"):
        headers, _ = curl("--compressed", edge + path)
        assert "content-encoding" not in headers, path
    long_name = {"inputs": [{"name": "N" * 5000, "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    headers, answer = curl("--compressed", "--data", json.dumps(long_name), f"{edge}/v2/models/id_fp32/infer")
    assert headers.startswith("http/1.1 400")
    assert "content-encoding" not in headers
    assert json.loads(answer)["error"]


@pytest.mark.parametrize("path", ["/v2/models/id_fp32/infer", "/v1/models/id_fp32:predict"])
def test_an_unknown_content_encoding_is_501_and_names_what_is_offered(stack: Stack, path: str) -> None:
    reply = httpx.post(stack.addresses.edge_url + path, content=b"x", headers={"content-encoding": "br"})
    assert reply.status_code == 501
    assert reply.headers["accept-encoding"] == "gzip, deflate"
    assert "Content-Encoding 'br' is not offered" in reply.json()["error" if path.startswith("/v2") else "message"]
    reply = httpx.post(stack.addresses.edge_url + path, content=b"x", headers={"content-encoding": "gzip"})
    assert reply.status_code == 400
