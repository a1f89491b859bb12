"""Collected bug reports about models that come and go (LIFE-*) and about names that leave the repository (SEC-01), replayed at the doors.

What takes long takes as long as a file says: models wait for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from onnx import helper

from core_grpc.types import Datatype
from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc
from tests.support.models import onnx_model, write_id, write_identity, write_onnx, write_plus
from tests.support.programs import Program, wait_until
from tests.support.python_models import ROWS, write_gated, write_held, write_python_model
from tests.support.rest import post_v2
from tests.support.stack import Stack, running_stack

FP32 = Datatype.FP32
GONE = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)


@dataclass
class Served:
    """A running gateway that allows management, its repository, a directory for files that models wait for, and a client of the node."""

    stack: Stack
    repository: Path
    signs: Path
    stub: grpc_service_pb2_grpc.GRPCInferenceServiceStub
    health: health_pb2_grpc.HealthStub

    def load(self, name: str) -> grpc.StatusCode | None:
        """None where it succeeded."""
        return _code(lambda: self.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=name), timeout=30))

    def unload(self, name: str) -> grpc.StatusCode | None:
        return _code(lambda: self.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=name), timeout=30))

    def index(self, name: str) -> dict[str, str]:
        """State and reason by version."""
        models = self.stub.RepositoryIndex(pb.RepositoryIndexRequest()).models
        return {item.version: f"{item.state} {item.reason}".strip() for item in models if item.name == name}

    def ask(self, name: str, value: float = 0.0, version: str = "", columns: int = 1) -> tuple[str, float]:
        """Version and first value of the answer.

        Raises:
            grpc.RpcError: it failed.
        """
        answer = self.stub.ModelInfer(request(name, value, version, columns), timeout=30)
        return answer.model_version, float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])

    def ask_code(self, name: str, version: str = "") -> grpc.StatusCode | None:
        return _code(lambda: self.ask(name, version=version))

    def is_ready(self, name: str) -> list[object]:
        """What each front says of a model."""
        return [
            self.stub.ModelReady(pb.ModelReadyRequest(name=name)).ready if self.ask_metadata(name) else False,
            self.stack.get(f"/v2/models/{quote(name)}/ready").status_code == 200,
        ]

    def ask_metadata(self, name: str) -> bool:
        return _code(lambda: self.stub.ModelMetadata(pb.ModelMetadataRequest(name=name))) is None

    def server_ready(self) -> list[bool]:
        """What each front says of the server."""
        check = self.health.Check(health_pb2.HealthCheckRequest())
        return [
            self.stub.ServerReady(pb.ServerReadyRequest()).ready,
            self.stack.get("/v2/health/ready").status_code == 200,
            self.stack.get("/health").status_code == 200,
            check.status == health_pb2.HealthCheckResponse.SERVING,
        ]


def _code(call: Callable[[], object]) -> grpc.StatusCode | None:
    try:
        call()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return None


def request(name: str, value: float, version: str = "", columns: int = 1) -> pb.ModelInferRequest:
    inputs = [pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[1, columns])]
    raw = np.full(columns, value, np.float32).tobytes()
    return pb.ModelInferRequest(model_name=name, model_version=version, inputs=inputs, raw_input_contents=[raw])


def arrived(stub: grpc_service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    """Returns when what was sent before on the channel is at work: the server takes up calls in their order."""
    for _ in range(3):
        stub.ServerLive(pb.ServerLiveRequest())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Served]:
    repository, signs = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("signs")
    write_plus(repository, 1)
    write_id(repository, FP32)
    write_identity(repository, "größe 大", {"X": ("FP32", [-1, 1])})
    with (
        running_stack(free_port, "grpcio", repository, {"TENSORGATE_EDGE_MANAGEMENT": "true"}) as stack,
        grpc.insecure_channel(stack.addresses.node_grpc) as channel,
    ):
        stub = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
        yield Served(stack, repository, signs, stub, health_pb2_grpc.HealthStub(channel))


@dataclass
class Traffic:
    """Callers who ask one model again and again, and what they got."""

    served: Served
    name: str
    callers: int = 2
    got: list[tuple[str, float]] = field(default_factory=list)
    failures: list[grpc.RpcError] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def _ask(self) -> None:
        while not self._is_over.is_set():
            try:
                self.got.append(self.served.ask(self.name))
            except grpc.RpcError as error:
                self.failures.append(error)

    def goes_on(self) -> None:
        """Returns when more was answered."""
        before = len(self.got)
        wait_until(lambda: len(self.got) > before + self.callers, "the next answers")

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.callers)]
        for thread in self._threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)


def test_life_01_unload_while_requests_run(served: Served) -> None:
    hold = served.signs / "hold"
    hold.touch()
    write_held(served.repository, "held", hold, "max_batch_size = 2")
    assert served.load("held") is None
    with ThreadPoolExecutor(1) as pool:
        running = [served.stub.ModelInfer.future(request("held", n, columns=4), timeout=30) for n in range(8)]
        wait_until((served.signs / "hold.entered").exists, "the model runs")
        arrived(served.stub)
        unloading = pool.submit(served.unload, "held")
        wait_until(lambda: served.index("held") == {"1": "UNLOADING"}, "the index says UNLOADING")
        assert {served.ask_code("held") for _ in range(5)} <= {*GONE}
        assert not unloading.done()
        hold.unlink()
        answers = [np.frombuffer(call.result().raw_output_contents[0], np.float32)[0] for call in running]
        assert answers == [2.0 * n for n in range(8)]
        assert unloading.result(30) is None
    assert served.index("held") == {"1": "UNAVAILABLE unloaded"}
    assert served.load("held") is None
    assert served.ask("held", 3, columns=4) == ("1", 6.0)


def test_life_02_a_broken_file_keeps_the_old_version(served: Served) -> None:
    """And LIFE-07, on request: a file that is cut off or overwritten while it serves is not served."""
    shape, other = (FP32, ("batch", 1)), onnx_model
    write_onnx(served.repository, "steady", onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": shape}, {"Y": shape}))
    (served.repository / "steady" / "model.toml").write_text('[input.X]\ndatatype = "FP32"\nshape = [-1, 1]\n')
    file = served.repository / "steady" / "1" / "model.onnx"
    good = file.read_bytes()
    renamed = other([helper.make_node("Identity", ["Z"], ["Y"])], {"Z": shape}, {"Y": shape}).SerializeToString()
    assert served.load("steady") is None
    with Traffic(served, "steady") as traffic:
        for broken in (os.urandom(1024), renamed, good[: len(good) // 2], b""):
            file.write_bytes(broken)
            assert served.load("steady") is grpc.StatusCode.INTERNAL
            assert served.index("steady")["1"].startswith("READY the last load failed: version 1: mode")
            traffic.goes_on()
        file.write_bytes(good)
        assert served.load("steady") is None
        traffic.goes_on()
    assert served.index("steady") == {"1": "READY"}
    assert not traffic.failures


def test_life_04_a_failing_load_returns_and_holds_up_no_other(served: Served) -> None:
    write_id(served.repository / "new", FP32, '[input.NOT_THERE]\ndatatype = "FP32"\nshape = [-1, 1]\n')
    shutil.move(served.repository / "new" / "id_fp32", served.repository / "names_what_is_not_there")
    (served.repository / "new").rmdir()
    raising = "class Model:\n    def execute(self, requests):\n        raise RuntimeError('cold')\n"
    write_python_model(served.repository, "warm_up_raises", raising, config="max_batch_size = 8\n[warmup]\ncount = 1", **ROWS)
    (served.repository / "empty" / "1").mkdir(parents=True)
    (served.repository / "empty" / "1" / "model.onnx").touch()
    write_gated(served.repository, "never", served.signs / "never")
    bad = ["names_what_is_not_there", "warm_up_raises", "empty"]
    with ThreadPoolExecutor(5) as pool:
        stuck = pool.submit(served.load, "never")
        wait_until(lambda: served.index("never") == {"1": "LOADING"}, "one model loads all the time")
        failing = [pool.submit(served.load, name) for name in bad]
        assert pool.submit(served.load, "id_fp32").result(30) is None
        assert [load.result(30) for load in failing] == [grpc.StatusCode.INTERNAL] * 3
        assert not stuck.done()
        (served.signs / "never").touch()
        assert stuck.result(30) is None
    reasons = {name: served.index(name)["1"] for name in bad}
    assert "the model has no such input" in reasons["names_what_is_not_there"]
    assert "cold" in reasons["warm_up_raises"]
    assert "is empty (0 bytes)" in reasons["empty"]


def test_life_06_no_gap_when_a_new_version_replaces_an_old_one(served: Served) -> None:
    code = "class Model:\n    def execute(self, requests):\n        return [{'Y': request.inputs['X'] + 1} for request in requests]\n"
    tensors = {"inputs": {"X": ("FP32", [-1, 1])}, "outputs": {"Y": ("FP32", [-1, 1])}}
    write_python_model(served.repository, "growing", code, config="max_batch_size = 8", **tensors)
    assert served.load("growing") is None
    with Traffic(served, "growing") as traffic, ThreadPoolExecutor(1) as pool:
        gate = served.signs / "growing"
        write_gated(served.signs / "new", "growing", gate)
        shutil.move(served.signs / "new" / "growing" / "1", served.repository / "growing" / "2")
        loading = pool.submit(served.load, "growing")
        traffic.goes_on()
        assert not loading.done()
        gate.touch()
        assert loading.result(30) is None
        traffic.goes_on()
    assert not traffic.failures
    versions = [version for version, _ in traffic.got]
    assert set(traffic.got) == {("1", 1.0), ("2", 0.0)}
    assert versions.index("2") >= len(versions) - versions[::-1].index("1") - traffic.callers, "it switches once, for each caller"
    assert served.ask_code("growing", "1") is grpc.StatusCode.NOT_FOUND
    assert served.index("growing") == {"2": "READY"}


def test_life_14_ready_while_one_model_loads(served: Served) -> None:
    write_gated(served.repository, "slowload", served.signs / "slowload")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(served.load, "slowload")
        wait_until(lambda: served.index("slowload") == {"1": "LOADING"}, "it loads")
        for _ in range(5):
            assert served.stack.get("/v2/health/live").status_code == 200
            assert served.server_ready() == [True] * 4
            assert served.is_ready("id_fp32") == [True, True]
            assert served.ask("id_fp32", 4) == ("1", 4.0)
            assert served.is_ready("slowload") == [False, False]
        assert not loading.done()
        (served.signs / "slowload").touch()
        assert loading.result(30) is None
    assert served.is_ready("slowload") == [True, True]


def test_life_15_after_an_unload_all_fronts_agree(served: Served) -> None:
    """An unload that somebody asked for takes no readiness away, whether it is one of the models or the last of them."""
    assert served.unload("plus") is None
    assert served.is_ready("plus") == [False, False]
    assert served.index("plus") == {"1": "UNAVAILABLE unloaded"}
    assert served.stack.get("/v2/models/plus").status_code == 404
    assert not served.ask_metadata("plus")
    assert served.ask_code("plus") is grpc.StatusCode.NOT_FOUND
    assert served.server_ready() == [True] * 4
    names = {item.name for item in served.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models}
    for name in names:
        assert served.unload(name) is None
    # What is left failed to load, and is missed.
    failed = [item for item in served.stub.RepositoryIndex(pb.RepositoryIndexRequest()).models if item.reason != "unloaded"]
    assert served.server_ready() == [not failed] * 4
    for name in sorted(names | {"plus"}):
        assert served.load(name) is None
    wait_until(lambda: served.is_ready("plus") == [True, True], "the edge has seen that the server is ready again")
    assert served.server_ready() == [True] * 4


LEAVING = ("..", " ..", ".. ", "../x", "a/../../x", "/etc", "..%2fx", "x\\..", ".", "a\0b", "", "   ", "model..", "...", "plus/1", "plus\n")


@pytest.mark.parametrize("name", LEAVING)
def test_sec_01_a_name_that_leaves_the_repository(served: Served, name: str) -> None:
    """There is a model beside the repository; it must not be found by any name. Such names are unknown, or no names."""
    if not (served.repository.parent / "x").exists():
        write_plus(served.repository.parent, 9, "x")
    refused = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}
    assert served.load(name) in refused
    assert served.unload(name) in refused
    assert served.ask_code(name) in refused
    assert not served.ask_metadata(name)
    path = quote(name, safe="")
    for method, url in (("GET", f"/v2/models/{path}"), ("POST", f"/v2/repository/models/{path}/load")):
        reply = httpx.request(method, served.stack.addresses.edge_url + url, timeout=10)
        assert reply.headers["content-type"].startswith("application/json")
        # Dots alone are no name but a way up in the URL, which ends at other documents of the server.
        assert reply.status_code in (400, 404, 405) or (name in ("..", ".") and "inputs" not in reply.text), reply.text


def test_json_17_a_name_of_other_letters(served: Served) -> None:
    name = "größe 大"
    assert served.ask(name, 5) == ("1", 5.0)
    assert served.is_ready(name) == [True, True]
    reply = post_v2(served.stack, quote(name), [("X", "FP32", [1, 1], [5])])
    assert (reply.status_code, reply.json()["model_name"]) == (200, name)
    assert served.unload(name) is None
    reply = httpx.post(f"{served.stack.addresses.edge_url}/v2/repository/models/{quote(name)}/load", timeout=10)
    assert reply.status_code == 200, reply.text
    assert served.index(name) == {"1": "READY"}


@contextmanager
def running_node(repository: Path, port: int, **environ: str) -> Iterator[Program]:
    flags = ["--models", str(repository), "--port", str(port), "--transport", "grpcio"]
    settings: Mapping[str, str] = {"TENSORGATE_DRAIN_NOTICE_S": "0", **environ}
    with Program("tensorgate", "node", *flags, env=settings) as node:
        yield node


def test_life_09_sigterm_with_requests_in_flight(free_port: Callable[[], int], tmp_path: Path) -> None:
    hold, port = tmp_path / "hold", free_port()
    hold.touch()
    write_held(tmp_path / "models", "held", hold, "max_batch_size = 4")
    with running_node(tmp_path / "models", port) as node, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        node.wait_for("models ready")
        stub = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
        running = [stub.ModelInfer.future(request("held", n, columns=4), timeout=30) for n in range(20)]
        wait_until((tmp_path / "hold.entered").exists, "the model runs")
        arrived(stub)
        node.send(signal.SIGTERM)
        wait_until(lambda: _code(lambda: stub.ModelInfer(request("held", 0, columns=4), timeout=0.5)) in GONE, "new work is refused")
        hold.unlink()
        answers = [float(np.frombuffer(call.result().raw_output_contents[0], np.float32)[0]) for call in running]
        assert answers == [2.0 * n for n in range(20)]
        assert node.wait() == 0
        assert "Traceback" not in node.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_life_11_stop_while_a_model_is_loading(free_port: Callable[[], int], tmp_path: Path, number: signal.Signals) -> None:
    write_gated(tmp_path / "models", "slowload", tmp_path / "never")
    write_plus(tmp_path / "models", 1)
    port = free_port()
    with running_node(tmp_path / "models", port) as node:
        node.wait_for("model plus version 1 is ready")
        node.send(number)
        assert node.wait() in (0, 128 + number)
        assert "Traceback" not in node.output
        assert "exception" not in node.output.lower()


def test_poll_refuses_requests_to_load_in_triton_s_words(free_port: Callable[[], int], tmp_path: Path) -> None:
    write_plus(tmp_path, 1)
    port = free_port()
    environ = {"TENSORGATE_MODELS_CONTROL": "poll", "TENSORGATE_MODELS_POLL_SETTLE_S": "0.1"}
    with running_node(tmp_path, port, **environ) as node, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        node.wait_for("models ready")
        stub = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls: list[Callable[[], object]] = [
            lambda: stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="plus")),
            lambda: stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="plus")),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError, match="explicit model load / unload is not allowed if polling is enabled") as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        write_plus(tmp_path, 2)
        node.wait_for("model plus version 2 is ready")
        node.send(signal.SIGTERM)
        assert node.wait() == 0
        assert "Traceback" not in node.output
