"""h2load (Debian: nghttp2-client) as a function: one closed-loop run against one URL."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """One door with one request."""

    name: str
    url: str
    body: bytes
    headers: Mapping[str, str]
    is_http1: bool = False
    """HTTP/1.1 with keep-alive instead of HTTP/2."""


@dataclass(frozen=True)
class Shape:
    """How hard to press."""

    requests: int
    clients: int
    streams: int
    """Requests in flight on each connection; HTTP/1.1 always has one."""


@dataclass
class Result:
    """What rounds of runs against one target gave."""

    requests_per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    @property
    def median_requests_per_s(self) -> float:
        """Requests per second, median of the rounds."""
        return statistics.median(self.requests_per_s)


def require_h2load() -> None:
    """Ends the program with one line if h2load is not there."""
    if shutil.which("h2load") is None:
        sys.exit("h2load is not installed: apt-get install nghttp2-client")


def run_round(target: Target, shape: Shape, result: Result) -> None:
    """One run, added to ``result``.

    Raises:
        RuntimeError: requests failed; nothing is added.
    """
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder, "body"), Path(folder, "log")
        body.write_bytes(target.body)
        output = subprocess.run(_command(target, shape, body, log), capture_output=True, text=True, check=False, timeout=300).stdout
        succeeded = re.search(r"(\d+) succeeded, (\d+) failed", output)
        if succeeded is None or int(succeeded[1]) != shape.requests:
            raise RuntimeError(f"{target.name}: h2load did not get {shape.requests} good answers:\n{output[-800:]}")
        rate = re.search(r"finished in [\d.]+m?s, ([\d.]+) req/s", output)
        latencies_ms = sorted(int(line.split("\t")[2]) / 1000 for line in log.read_text().splitlines())
    if rate is None:
        raise RuntimeError(f"{target.name}: no rate in h2load's output:\n{output[-800:]}")
    result.requests_per_s.append(float(rate[1]))
    result.p50_ms.append(latencies_ms[len(latencies_ms) // 2])
    result.p99_ms.append(latencies_ms[len(latencies_ms) * 99 // 100])


def _command(target: Target, shape: Shape, body: Path, log: Path) -> list[str]:
    clients = shape.clients * shape.streams if target.is_http1 else shape.clients
    command = ["h2load", "-n", str(shape.requests), "-c", str(clients), "-d", str(body), f"--log-file={log}"]
    # Large windows, or flow control of the load generator would be what is measured.
    command += ["--h1"] if target.is_http1 else ["-m", str(shape.streams), "-w", "24", "-W", "26"]
    for name, value in target.headers.items():
        command += ["-H", f"{name}: {value}"]
    return [*command, target.url]
