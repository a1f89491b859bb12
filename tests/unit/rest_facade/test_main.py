"""The facade as a program: sockets, signals, memory."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from protos.tensorgate.v1 import inference_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]

PATIENCE_S = 30.0

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts facades; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(**environment: Any) -> subprocess.Popen[str]:
        pass_fds = environment.pop("pass_fds", ())
        own = {name: value for name, value in os.environ.items() if not name.startswith("TENSORGATE_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "rest_facade"],
            cwd=ROOT,
            env={**own, **{f"TENSORGATE_{name}": str(value) for name, value in environment.items()}},
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """Where a facade listens, by its own first line; it listens before it says so."""
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"listening on (\S+),", line)
    assert found, line
    return found[1]


def client_of(process: subprocess.Popen[str]) -> httpx.Client:
    address = address_of(process)
    path = address.removeprefix("unix:")
    if path == address:
        return httpx.Client(base_url=address, timeout=PATIENCE_S)
    return httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://gate.example", timeout=PATIENCE_S)


def check_live(client: httpx.Client) -> None:
    assert client.get("/health/live").json() == {"status": "live"}


def test_serves_until_sigterm_and_exits_in_good_order(start: Start) -> None:
    process = start(FACADE_PORT=0)
    with client_of(process) as client:
        check_live(client)
        assert client.get("/health").status_code == 503
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert errors == ""


def test_fits_in_its_memory(start: Start) -> None:
    process = start(FACADE_PORT=0)
    with client_of(process) as client:
        check_live(client)
        for path in ("/", "/docs", "/openapi.json", "/static/swagger-ui/swagger-ui-bundle.js", "/health"):
            client.get(path)
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    assert int(re.findall(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[0]) <= 75 * 1024


def test_listens_on_a_unix_socket_that_is_its_owners_alone(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "facade.sock"
    # What a killed process leaves behind is in nobody's way.
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with client_of(start(FACADE_UNIX_SOCKET=path)) as client:
        check_live(client)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def refusal(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert errors.count("\n") == 1
    return process.returncode, errors.rstrip("\n")


def test_a_taken_port_is_one_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refusal(start(FACADE_PORT=port))
    assert code == 1
    assert line == f"tensorgate facade: port {port} on 127.0.0.1 is taken: stop what uses it or set TENSORGATE_FACADE_PORT to another"


def test_a_taken_or_impossible_socket_is_one_line(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "taken.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        assert refusal(start(FACADE_UNIX_SOCKET=path)) == (
            1,
            f"tensorgate facade: TENSORGATE_FACADE_UNIX_SOCKET: {path} is taken by a running server",
        )
    nowhere = tmp_path / "nowhere" / "facade.sock"
    code, line = refusal(start(FACADE_UNIX_SOCKET=nowhere))
    assert (code, line) == (
        1,
        f"tensorgate facade: TENSORGATE_FACADE_UNIX_SOCKET: cannot listen on {nowhere}: No such file or directory",
    )


def test_an_unknown_address_or_setting_is_one_line(start: Start) -> None:
    code, line = refusal(start(FACADE_HOST="no.such.host.invalid"))
    assert code == 1
    assert line.startswith("tensorgate facade: TENSORGATE_FACADE_HOST: no.such.host.invalid is no address")
    code, line = refusal(start(FACADE_PROT=1))
    assert code == 2
    assert line.startswith("tensorgate facade: TENSORGATE_FACADE_PROT: no such setting")


class Core(inference_pb2_grpc.InferenceServiceServicer):
    """Keeps a request until it is released."""

    def __init__(self) -> None:
        self.address = ""
        self.entered = threading.Event()
        self.release = threading.Event()

    def GetModel(self, _request: Any, context: grpc.ServicerContext) -> Any:
        self.entered.set()
        self.release.wait(PATIENCE_S)
        context.abort(grpc.StatusCode.NOT_FOUND, "released")


@pytest.fixture
def core() -> Iterator[Core]:
    servicer = Core()
    server = grpc.server(ThreadPoolExecutor(2))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    servicer.release.set()
    server.stop(None).wait(PATIENCE_S)


def begin_request(url: httpx.URL, core: Core) -> socket.socket:
    """Sends a request and waits until the core has it."""
    connection = socket.create_connection(address_in(url), PATIENCE_S)
    body = b'{"input": [1]}'
    connection.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    assert core.entered.wait(PATIENCE_S)
    return connection


def address_in(url: httpx.URL) -> tuple[str, int]:
    assert url.port is not None
    return url.host, url.port


def test_accepted_work_may_finish(start: Start, core: Core) -> None:
    process = start(FACADE_PORT=0, FACADE_CORE_ADDRESS=core.address)
    url = httpx.URL(address_of(process))
    with begin_request(url, core) as connection:
        process.send_signal(signal.SIGTERM)
        wait_until_closed(url)
        core.release.set()
        assert connection.recv(4096).startswith(b"HTTP/1.1 404 ")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_forces(start: Start, core: Core, second: signal.Signals) -> None:
    process = start(FACADE_PORT=0, FACADE_CORE_ADDRESS=core.address)
    url = httpx.URL(address_of(process))
    with begin_request(url, core):
        process.send_signal(signal.SIGTERM)
        wait_until_closed(url)
        process.send_signal(second)
        # Far less than the grace that the request would have had.
        process.communicate(timeout=10)


def wait_until_closed(url: httpx.URL) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(address_in(url)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    raise AssertionError("still listening")


@pytest.mark.parametrize(("message", "code"), [(b"drain\n", 0), (b"", 1)], ids=["drain", "the supervisor died"])
def test_obeys_the_control_pipe(start: Start, message: bytes, code: int) -> None:
    read_end, write_end = os.pipe()
    process = start(FACADE_PORT=0, CONTROL_FD=read_end, pass_fds=(read_end,))
    os.close(read_end)
    with client_of(process) as client:
        check_live(client)
    if message:
        os.write(write_end, message)
        process.communicate(timeout=PATIENCE_S)
    os.close(write_end)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
