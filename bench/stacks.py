"""Programs under measurement, started as an operator starts them, and what they cost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core_grpc.transports.envoy_host import NodeListener, envoy_command, node_config, node_environment

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0

IDENTITY = """\
backend = "identity"
max_batch_size = 32
[input.X]
datatype = "FP32"
shape = [-1, -1]
"""


_OWN = {
    "TENSORGATE_SERVER_METRICS_PORT": "0",
    "TENSORGATE_USAGE_DATABASE": str(Path(tempfile.gettempdir(), f"bench-usage-{os.getpid()}.db")),
}
"""Of a measured server: metered as by default, beside whatever runs on this machine."""


@dataclass(frozen=True)
class Gateway:
    """A running ``tensorgate serve``."""

    edge: str
    """``host:port``."""
    node: str
    """``host:port`` of the node's own gRPC listener."""
    pid: int
    ready_s: float
    """From the start of the program to its word that it is ready."""

    def pid_of(self, part: str) -> int:
        """The process of a part: ``node``, ``edge`` or ``facade``."""
        marks = {"node": "node.yaml", "edge": "edge.yaml", "facade": "rest_facade"}
        return next(pid for pid in process_tree(self.pid) if marks[part] in _command_line(pid))


@contextmanager
def repository(models: dict[str, str]) -> Iterator[Path]:
    """A model repository of models without files: name to model.toml."""
    with tempfile.TemporaryDirectory() as folder:
        for name, config in models.items():
            (Path(folder) / name / "1").mkdir(parents=True)
            (Path(folder) / name / "model.toml").write_text(config, encoding="utf-8")
        yield Path(folder)


@contextmanager
def gateway(models: Path | None, transport: str = "envoy") -> Iterator[Gateway]:
    """``tensorgate serve``; without models it serves the demo model."""
    edge, node = free_port(), free_port()
    command = [sys.executable, "-m", "tensorgate", "serve", "--port", str(edge), "--grpc-port", str(node)]
    command += ["--transport", transport, "--log-level", "warning", *(["--models", str(models)] if models else [])]
    env = {**os.environ, **_OWN, "TENSORGATE_DRAIN_NOTICE_S": "0"}
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _await_line(process, "Tensorgate is ready")
            yield Gateway(f"127.0.0.1:{edge}", f"127.0.0.1:{node}", process.pid, time.perf_counter() - began)
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def hosted(application: str) -> Iterator[str]:
    """An ASGI application in an Envoy that hosts Python, alone; its ``host:port``."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "node.yaml")
        config.write_text(node_config(NodeListener("127.0.0.1", port, f"{folder}/admin.sock"), application), encoding="utf-8")
        command = envoy_command(config, concurrency=1, log_level="error")
        with _server(command, node_environment({**os.environ, "PYTHONPATH": str(ROOT)}), port):
            yield f"127.0.0.1:{port}"


@contextmanager
def python_program(arguments: list[str], environ: dict[str, str], port: int) -> Iterator[str]:
    """A Python program that listens on ``port``; its ``host:port``."""
    with _server([sys.executable, *arguments], {**os.environ, **_OWN, **environ}, port):
        yield f"127.0.0.1:{port}"


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process_tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in process_tree(int(child)))]


def pss_bytes(pid: int) -> int:
    """A process's proportional set size: shared pages are divided among those who share them."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


def cpu_s(pid: int) -> float:
    """CPU time a process has used, user and system, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@contextmanager
def _server(command: list[str], env: dict[str, str], port: int) -> Iterator[None]:
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            _await_port(process, port)
            yield
        finally:
            process.terminate()
            process.wait(30)


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"pid {process.pid} does not listen on {port}")


def _await_line(process: subprocess.Popen[str], text: str) -> None:
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if text in line:
            return
    raise RuntimeError(f"ended before it was ready:\n{''.join(said)}")
