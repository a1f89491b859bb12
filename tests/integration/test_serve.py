"""``tensorgate serve`` as a user meets it: start, crash, stop, kill, and every way in which it may refuse to start."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.tensorgate.v1 import inference_pb2, inference_pb2_grpc
from tensorgate.ports import Door, DoorError
from tests.integration.conftest import free_address
from tests.support.programs import ROOT, Program, descendants, is_running, wait_until, write_identity_model

ECHO = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
READY = "Ctrl-C finishes accepted work"


class Gateway(Program):
    """A running ``tensorgate serve`` on free ports."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        self.edge, self.node = free_address(), free_address()
        self.url = self.edge.url()
        super().__init__("tensorgate", "serve", "--port", str(self.edge.port), "--grpc-port", str(self.node.port), *flags, env=env)

    def child(self, mark: str) -> int:
        """The pid of the child whose command line contains ``mark``."""
        return next(pid for pid, command in descendants(self.pid).items() if mark in command)

    def infer(self, model: str = "echo") -> httpx.Response:
        """One call through the edge."""
        return httpx.post(f"{self.url}/v2/models/{model}/infer", json=ECHO, timeout=30)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    write_identity_model(models, "echo")
    write_identity_model(models, "slow", delay_ms=1500)
    return models


@pytest.fixture(params=["envoy", "grpcio"])
def gateway(repository: Path, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with Gateway("--models", str(repository), "--transport", request.param) as running:
        running.wait_for(READY)
        yield running


def test_ctrl_c_finishes_accepted_work_and_leaves_nothing(gateway: Gateway) -> None:
    assert gateway.infer().json()["outputs"][0]["data"] == [1, 2, 3, 4]
    children = descendants(gateway.pid)
    assert len(children) >= 3
    (directory,) = set(re.findall(r"\S*/tensorgate-[^/\s]+(?=/)", " ".join(children.values())))
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(gateway.infer, "slow")
        wait_until(lambda: active_requests(Path(directory)) == 1, "the slow request is at the edge")
        gateway.send(signal.SIGINT)
        assert slow.result().status_code == 200
    assert gateway.wait() == 0
    assert not [command for pid, command in children.items() if is_running(pid)]
    assert not Path(directory).exists()
    assert_free(gateway)


def assert_free(gateway: Gateway) -> None:
    # The last thread of a killed process lets go of its sockets a moment after the process counts as dead.
    wait_until(lambda: is_free(gateway.edge) and is_free(gateway.node), "the ports are free", 5)


def is_free(door: Door) -> bool:
    try:
        door.resolved(insecure=False)
    except DoorError:
        return False
    return True


def active_requests(directory: Path) -> int:
    transport = httpx.HTTPTransport(uds=str(directory / "edge-admin.sock"))
    with httpx.Client(transport=transport) as client:
        stats = client.get("http://edge/stats?filter=^http.edge.downstream_rq_active$").text
    return int(stats.rpartition(":")[2])


def test_kill_9_leaves_no_process_and_no_port(gateway: Gateway) -> None:
    children = descendants(gateway.pid)
    gateway.send(signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in children), "no child is left", 10)
    assert_free(gateway)


def test_a_crashed_node_comes_back_while_the_edge_answers(gateway: Gateway) -> None:
    edge = gateway.child("edge.yaml")
    node = gateway.child("node.yaml") if any("node.yaml" in c for c in descendants(gateway.pid).values()) else gateway.child("core_grpc")
    os.kill(node, signal.SIGKILL)
    wait_until(lambda: gateway.infer().status_code == 503, "the edge says that nobody answers", 5)
    answer = gateway.infer()
    if answer.status_code == 503:
        assert answer.json()["error"].startswith("the server behind the edge does not answer")
    gateway.wait_for("node is back")
    wait_until(lambda: gateway.infer().status_code == 200, "the node serves again", 10)
    assert "node was killed by SIGKILL; it is started again in 0.5 s" in gateway.output
    assert gateway.child("edge.yaml") == edge


def test_a_second_signal_does_not_wait(repository: Path) -> None:
    write_identity_model(repository, "endless", delay_ms=100_000)
    with Gateway("--models", str(repository)) as gateway:
        gateway.wait_for(READY)
        children = descendants(gateway.pid)
        with ThreadPoolExecutor() as pool:
            call = pool.submit(attempt, gateway)
            (directory,) = set(re.findall(r"\S*/tensorgate-[^/\s]+(?=/)", " ".join(children.values())))
            wait_until(lambda: active_requests(Path(directory)) == 1, "the request is at the edge")
            gateway.send(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                gateway.wait(1)
            gateway.send(signal.SIGTERM)
            assert gateway.wait(10) == 130
            call.result()
        assert not any(is_running(pid) for pid in children)


def attempt(gateway: Gateway) -> Any:
    try:
        return gateway.infer("endless")
    except httpx.HTTPError as error:
        return error


def test_the_lines_it_prints_work_when_pasted() -> None:
    with Gateway() as gateway:
        gateway.wait_for(READY)
        command = next(line for line in gateway.output.splitlines() if line.strip().startswith("curl "))
        answer = subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
        assert "espresso" in answer.stdout
        for url in re.findall(r"http://\S+", gateway.output):
            assert url.endswith(":predict") or httpx.get(url, follow_redirects=True).status_code == 200, url
        with grpc.insecure_channel(f"{gateway.node.host}:{gateway.node.port}") as channel:
            models = inference_pb2_grpc.InferenceServiceStub(channel).ListModels(inference_pb2.ListModelsRequest(), timeout=10)
        assert [model.name for model in models.models] == ["efficientnet_lite0"]
        for door in ("grpc", "grpc-web", "v1", "v2", "v2-binary", "upload"):
            call = ["infer", "efficientnet_lite0", "--image", "tensorgate/samples/coffee.jpg", "--door", door, "--url", gateway.url]
            call += ["--grpc-address", f"{gateway.node.host}:{gateway.node.port}"]
            shown = subprocess.run([sys.executable, "-m", "tensorgate", *call], cwd=ROOT, capture_output=True, text=True, check=False)
            assert shown.returncode == 0, shown.stderr
            assert "espresso" in shown.stdout


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_taken_port_is_one_line(flag: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ports = {"--port": "0", "--grpc-port": "0"} | {flag: str(port)}
        with Program("tensorgate", "serve", *[part for pair in ports.items() for part in pair]) as program:
            assert program.wait() == 1
            assert program.output == (
                f"tensorgate serve: port {port} on 127.0.0.1 is taken: stop what listens there or choose another with {flag}\n"
            )


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        ("serve --host 0.0.0.0", 1, "0.0.0.0 can be reached by others"),
        ("serve --models /no/such/directory", 2, "--models: wanted a directory of models, got /no/such/directory"),
        ("serve --port 70000", 2, "TENSORGATE_EDGE_PORT: wanted 0 to 65535, got 70000"),
        ("serve --log-level loud", 2, "invalid choice: 'loud'"),
        ("serve --nonsense", 2, "unrecognized arguments: --nonsense"),
        ("node --host 0.0.0.0", 1, "0.0.0.0 can be reached by others"),
        ("edge --host 0.0.0.0", 1, "0.0.0.0 can be reached by others"),
        ("edge --core nowhere", 2, "edge.core: wanted unix:/path or host:port, got 'nowhere'"),
        ("facade --host 0.0.0.0", 1, "0.0.0.0 can be reached by others"),
        ("infer m", 2, "required: --image"),
        ("infer m --image /no/such/photo.jpg", 1, "/no/such/photo.jpg: No such file or directory"),
        ("infer m --image README.md --top 0", 2, "wanted a number from 1, got '0'"),
        ("infer m --image README.md --grpc-address 127.0.0.1:1", 1, "nothing answers at 127.0.0.1:1"),
        ("infer m --image README.md --door v1 --url http://127.0.0.1:1", 1, "nothing answers at http://127.0.0.1:1"),
        ("infer m --image README.md --door grpc-web --url http://127.0.0.1:1", 1, "nothing answers at http://127.0.0.1:1"),
        ("", 2, "required: COMMAND"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(flags: str, code: int, text: str) -> None:
    with Program("tensorgate", *shlex.split(flags)) as program:
        assert program.wait() == code, program.output
        complaint = [line for line in program.output.splitlines() if not line.startswith(("usage:", " "))]
        assert len(complaint) == 1, program.output
        assert text in complaint[0]


def test_print_shows_a_checked_configuration() -> None:
    with Program("tensorgate", "edge", "--print", "--host", "127.0.0.1", "--cors-origin", "https://app.example") as program:
        assert program.wait() == 0
        assert program.output.startswith("# The edge: a plain Envoy")
        assert "https://app" in program.output


def test_version() -> None:
    with Program("tensorgate", "--version") as program:
        assert program.wait() == 0
        assert re.fullmatch(r"tensorgate \d+\.\d+\S*\n", program.output)


def test_streams_without_work_hold_nobody_up(gateway: Gateway) -> None:
    """They would last for ever: a stop that waited for them would take the whole grace."""
    asked = threading.Event()
    stub = reflection_pb2_grpc.ServerReflectionStub(grpc.insecure_channel(f"127.0.0.1:{gateway.node.port}"))
    idle = stub.ServerReflectionInfo(reflection_pb2.ServerReflectionRequest(list_services="") for _ in range(1) if asked.wait())
    for address in (f"127.0.0.1:{gateway.edge.port}", f"127.0.0.1:{gateway.node.port}"):
        watch = health_pb2_grpc.HealthStub(grpc.insecure_channel(address)).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    gateway.send(signal.SIGTERM)
    assert gateway.wait(20) == 0
    assert "did not finish its work" not in gateway.output
    idle.cancel()
    asked.set()
