"""The REST servicer over a real data plane with identity models."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody
from PIL import Image

from core_grpc.errors import GatewayError, InvalidArgument, LimitExceeded, ModelNotReady, NotFound, Unsupported
from core_grpc.lifecycle import ServerState
from core_grpc.rpc.compression import compressed
from core_grpc.rpc.generate_servicer import GenerateServicer
from core_grpc.rpc.repository_servicers import RestRepositoryServicer
from core_grpc.rpc.rest_servicer import RestServicer
from core_grpc.server import Node
from core_grpc.settings import DrainSettings, ModelsSettings, NodeSettings
from core_grpc.shared_memory.regions import SharedMemory
from protos.tensorgate.rest.v1 import rest_pb2 as pb

PHOTO_MODEL = """
backend = "identity"
max_batch_size = 4
[input.X]
datatype = "FP32"
shape = [-1, 3, 2, 2]
[input.X.image]
size = [2, 2]
resize = "exact"
"""
START_S = 20
POOL = ThreadPoolExecutor(1)


@dataclass
class Call:
    """One call, as a transport would hand it over."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    deadline: float | None = None
    from_edge: bool = True
    request_id: str = "r"
    headers: dict[str, str] = field(default_factory=dict)

    def set_header(self, name: str, value: str) -> None:
        self.headers[name] = value


def write_model(repository: Path, name: str, toml: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "model.toml").write_text(toml)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    write_model(tmp_path, "fp32", 'backend = "identity"\nmax_batch_size = 8\n[input.X]\ndatatype = "FP32"\nshape = [-1, -1]\n')
    write_model(tmp_path, "photo", PHOTO_MODEL)
    write_model(tmp_path, "broken", 'backend = "nobody"\n')
    settings = NodeSettings(models=ModelsSettings(repository=str(tmp_path)), drain=DrainSettings(notice_s=0))
    node = await asyncio.to_thread(Node, settings)
    node.start()
    ends = time.monotonic() + START_S
    while node.lifecycle.state is not ServerState.SERVING:
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)
    yield node
    await node.drain(lambda: 0)


async def ask(node: Node, method: str, request: Any, call: Call | None = None) -> HttpBody:
    # The table's own handler turns failures into statuses; here the failures themselves are looked at.
    servicer = RestServicer(node.data_plane, node.settings, POOL, SharedMemory(is_allowed=False))
    answer = await getattr(servicer, method)(request, call or Call())
    assert isinstance(answer, HttpBody)
    return answer


async def read(node: Node, method: str, model: str = "", version: str = "") -> Any:
    answer = await ask(node, method, pb.RestRequest(model=model, version=version))
    assert answer.content_type == "application/json"
    return json.loads(answer.data)


async def post(node: Node, method: str, body: bytes, content_type: str = "", *, model: str = "fp32", call: Call | None = None) -> HttpBody:
    request = pb.RestBodyRequest(model=model, body=HttpBody(content_type=content_type, data=body))
    return await ask(node, method, request, call)


def infer_body(array: np.ndarray[Any, Any], **root: Any) -> bytes:
    tensor = {"name": "X", "datatype": "FP32", "shape": array.shape, "data": array.reshape(-1).tolist()}
    return json.dumps({"inputs": [tensor], **root}).encode()


async def test_health_and_metadata(node: Node) -> None:
    assert await read(node, "ServerLive") == {"live": True}
    assert await read(node, "ServerReady") == {"ready": True}
    assert await read(node, "ModelReady", "fp32", "1") == {"name": "fp32", "ready": True}
    assert (await read(node, "ServerMetadata"))["name"] == "tensorgate"
    assert await read(node, "ModelMetadata", "fp32") == {
        "name": "fp32",
        "versions": ["1"],
        "platform": "identity",
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": [-1, -1]}],
    }


async def test_what_is_not_ready_or_not_there(node: Node) -> None:
    with pytest.raises(ModelNotReady):
        await read(node, "ModelReady", "broken")
    for method in ("ModelReady", "ModelMetadata"):
        with pytest.raises(NotFound):
            await read(node, method, "nope")
    with pytest.raises(NotFound):
        await post(node, "ModelInfer", infer_body(np.zeros((1, 2))), model="nope")


async def test_readiness_ends_with_the_drain(tmp_path: Path) -> None:
    write_model(tmp_path, "fp32", 'backend = "identity"\n[input.X]\ndatatype = "FP32"\nshape = [-1]\n')
    settings = NodeSettings(models=ModelsSettings(repository=str(tmp_path)), drain=DrainSettings(notice_s=0))
    node = await asyncio.to_thread(Node, settings)
    with pytest.raises(ModelNotReady, match="not ready"):
        await read(node, "ServerReady")
    await node.drain(lambda: 0)
    with pytest.raises(ModelNotReady):
        await read(node, "ServerLive")


@pytest.mark.parametrize("content_type", ["", "application/json", "application/octet-stream", "application/x-www-form-urlencoded"])
async def test_json_under_the_types_that_clients_send(node: Node, content_type: str) -> None:
    answer = await post(node, "ModelInfer", infer_body(np.array([[1, 2]]), id="r1"), content_type)
    outputs = [{"name": "Y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]
    assert json.loads(answer.data) == {"model_name": "fp32", "model_version": "1", "id": "r1", "outputs": outputs}
    assert answer.content_type == "application/json"


async def test_a_binary_answer_sets_the_length_header(node: Node) -> None:
    call = Call()
    answer = await post(node, "ModelInfer", infer_body(np.array([[1, 2]]), parameters={"binary_data_output": True}), call=call)
    assert answer.content_type == "application/octet-stream"
    length = int(call.headers["inference-header-content-length"])
    assert json.loads(answer.data[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert answer.data[length:] == np.array([1, 2], np.float32).tobytes()


async def test_a_raw_request(node: Node) -> None:
    values = np.arange(4, dtype=np.float32)
    call = Call({"inference-header-content-length": "0"})
    answer = await post(node, "ModelInfer", values.tobytes(), "application/octet-stream", call=call)
    assert answer.data.endswith(values.tobytes())


@pytest.mark.parametrize("value", ["-1", "9" * 20, "9" * 5000])
async def test_a_length_header_that_is_no_length(node: Node, value: str) -> None:
    with pytest.raises(InvalidArgument, match="Inference-Header-Content-Length: wanted"):
        await post(node, "ModelInfer", infer_body(np.zeros((1, 2))), call=Call({"inference-header-content-length": value}))


class CountingPool(ThreadPoolExecutor):
    """Counts what it is given to do."""

    def __init__(self) -> None:
        super().__init__(1)
        self.count = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize(("columns", "count"), [(2, 0), (20_000, 2)])
async def test_large_bodies_of_generate_go_to_a_thread(node: Node, columns: int, count: int) -> None:
    pool = CountingPool()
    servicer = GenerateServicer(node.data_plane, node.settings.limits, pool)
    values = [0.5] * columns
    body = HttpBody(data=json.dumps({"X": [values]}).encode())
    answer = await servicer.Generate(pb.RestBodyRequest(model="fp32", body=body), Call())
    assert json.loads(answer.data)["Y"] == values
    assert pool.count == count, "to read it and to write it"


async def test_a_large_body_of_a_load_goes_to_a_thread(node: Node) -> None:
    pool = CountingPool()
    servicer = RestRepositoryServicer(node.data_plane, node.settings.limits, pool)
    for size, count in ((10, 0), (1 << 17, 1)):
        body = HttpBody(data=json.dumps({"parameters": {"file:1/f": "A" * size}}).encode())
        with pytest.raises(InvalidArgument):
            await servicer.RepositoryModelLoad(pb.RestBodyRequest(model="fp32", body=body), Call())
        assert pool.count == count


async def test_bodies_that_go_to_a_thread(node: Node) -> None:
    values = np.random.default_rng(0).standard_normal((2, 20_000)).astype(np.float32)
    answer = await post(node, "ModelInfer", infer_body(values))
    np.testing.assert_array_equal(np.array(json.loads(answer.data)["outputs"][0]["data"], np.float32), values.reshape(-1))


@pytest.mark.parametrize("method", ["ModelInfer", "Predict"])
async def test_what_is_not_read(node: Node, method: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^content type 'text/plain': wanted application/json"):
        await post(node, method, b"{}", "text/plain;charset=UTF-8".partition(";")[0])
    call = Call({"content-encoding": "br"})
    with pytest.raises(Unsupported, match="Content-Encoding 'br' is not offered"):
        await post(node, method, b"{}", call=call)
    assert call.headers == {"accept-encoding": "gzip, deflate"}
    with pytest.raises(InvalidArgument, match="not gzip"):
        await post(node, method, b"{}", call=Call({"content-encoding": "gzip"}))
    with pytest.raises(GatewayError, match="takes no uploads"):
        await post(node, method, b"\x89PNG", "image/png")
    for content_type in ("application/json", "", "application/x-www-form-urlencoded", "application/octet-stream"):
        with pytest.raises(InvalidArgument, match="byte 0 is not UTF-8"):
            await post(node, method, b"\x89PNG\xff\xfe", content_type)


@pytest.mark.parametrize("size", [300, 20_000])
@pytest.mark.parametrize(("encoding", "inflate"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
async def test_json_13_compressed_bodies_both_ways(node: Node, encoding: str, inflate: Callable[[bytes], bytes], size: int) -> None:
    body = infer_body(np.ones((1, size)), parameters={"binary_data_output": True})
    call = Call({"content-encoding": encoding, "accept-encoding": encoding, "inference-header-content-length": str(len(body))})
    answer = await post(node, "ModelInfer", compressed(body, encoding), call=call)
    assert (call.headers["content-encoding"], call.headers["vary"]) == (encoding, "accept-encoding")
    whole = inflate(answer.data)
    length = int(call.headers["inference-header-content-length"])
    assert json.loads(whole[:length])["outputs"][0]["parameters"] == {"binary_data_size": size * 4}
    assert whole[length:] == np.ones(size, np.float32).tobytes()
    call = Call({"content-encoding": encoding, "accept-encoding": encoding})
    answer = await post(node, "Predict", compressed(json.dumps({"inputs": [[1] * size]}).encode(), encoding), call=call)
    assert json.loads(inflate(answer.data))["outputs"] == {"Y": [[1] * size]}


async def test_small_answers_are_not_compressed(node: Node) -> None:
    call = Call({"accept-encoding": "gzip"})
    json.loads((await post(node, "Predict", b'{"inputs": [5, 6]}', call=call)).data)
    assert call.headers == {}


@pytest.mark.parametrize("accepted", ["gzip;q=0", "identity", "br", ""])
async def test_json_13_answers_are_compressed_only_as_accepted(node: Node, accepted: str) -> None:
    call = Call({"accept-encoding": accepted})
    json.loads((await post(node, "ModelInfer", infer_body(np.ones((1, 1000))), call=call)).data)
    assert call.headers == {"vary": "accept-encoding"}


@pytest.mark.parametrize("method", ["ModelInfer", "Predict"])
async def test_lim_05_a_body_that_inflates_beyond_the_limit(node: Node, method: str) -> None:
    bomb = compressed(b" " * (node.settings.limits.max_message_bytes + 1), "gzip")
    with pytest.raises(LimitExceeded, match="max_message_bytes"):
        await post(node, method, bomb, call=Call({"content-encoding": "gzip"}))


async def test_predict_answers_in_the_form_of_the_question(node: Node) -> None:
    answer = json.loads((await post(node, "Predict", b'{"instances": [[1, 2], [3, 4]]}')).data)
    assert (answer["model"], answer["version"], answer["predictions"]) == ("fp32", "1", [[1, 2], [3, 4]])
    assert set(answer["timing_ms"]) == {"preprocess", "queue", "compute"}
    assert json.loads((await post(node, "Predict", b'{"inputs": [5, 6]}')).data)["outputs"] == {"Y": [[5, 6]]}


def photo() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), (255, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("content_type", ["image/png", "application/octet-stream", "application/x-www-form-urlencoded", ""])
async def test_a_bare_photo_with_options_in_the_query(node: Node, content_type: str) -> None:
    call = Call({"x-envoy-original-path": "/v1/models/photo:predict?outputs=Y"})
    answer = json.loads((await post(node, "Predict", photo(), content_type, model="photo", call=call)).data)
    assert np.array(answer["outputs"]["Y"]).shape == (1, 3, 2, 2)


async def test_models_of_photos_still_read_json(node: Node) -> None:
    body = json.dumps({"inputs": np.ones((1, 3, 2, 2)).tolist()}).encode()
    for content_type in ("application/octet-stream", "application/json", ""):
        assert json.loads((await post(node, "Predict", body, content_type, model="photo")).data)["outputs"]["Y"][0][0] == [[1, 1], [1, 1]]
    with pytest.raises(InvalidArgument, match="byte 0 is not UTF-8"):
        await post(node, "Predict", photo(), "application/json", model="photo")


async def test_a_photo_in_a_form_on_both_doors(node: Node) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    form = head + photo() + b"\r\n--b--\r\n"
    answer = json.loads((await post(node, "Predict", form, "multipart/form-data; boundary=b", model="photo")).data)
    assert np.array(answer["outputs"]["Y"]).shape == (1, 3, 2, 2)
    answer = json.loads((await post(node, "ModelInfer", form, "multipart/form-data; boundary=b", model="photo")).data)
    assert answer["outputs"][0]["shape"] == [1, 3, 2, 2]


async def test_the_deadline_of_the_call_is_the_request_s(node: Node) -> None:
    call = replace(Call(), deadline=time.monotonic() - 1)
    with pytest.raises(GatewayError, match="deadline"):
        await post(node, "ModelInfer", infer_body(np.zeros((1, 2))), call=call)
