"""Programs that several tests of this folder share: one node of identity models, and one edge in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorgate.ports import Door
from tests.support.programs import Program, write_identity_model

MAX_MESSAGE_BYTES = 1 << 20
MAX_REQUEST_S = 4.0


@dataclass(frozen=True)
class Gateway:
    """Addresses of a running edge and of the node behind it."""

    url: str
    edge_address: str
    node_address: str


def free_address() -> Door:
    """A loopback address that nobody listened on a moment ago."""
    return Door("127.0.0.1", 0, "").resolved(insecure=False)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """An edge before a node on grpc.aio; no facade runs."""
    repository: Path = tmp_path_factory.mktemp("models")
    write_identity_model(repository, "echo")
    write_identity_model(repository, "slow", delay_ms=10_000)
    edge, node, facade = free_address(), free_address(), free_address()
    limits = {"TENSORGATE_LIMITS_MAX_MESSAGE_BYTES": str(MAX_MESSAGE_BYTES), "TENSORGATE_LIMITS_MAX_REQUEST_S": str(MAX_REQUEST_S)}
    node_flags = ["--models", str(repository), "--port", str(node.port), "--transport", "grpcio"]
    edge_flags = ["--port", str(edge.port), "--core", f"127.0.0.1:{node.port}", "--facade", f"127.0.0.1:{facade.port}"]
    with Program("tensorgate", "node", *node_flags, env=limits) as core:
        core.wait_for("serving: 2 of 2 models ready")
        with Program("tensorgate", "edge", *edge_flags, env=limits) as door:
            door.wait_for("edge listens on")
            yield Gateway(edge.url(), f"127.0.0.1:{edge.port}", f"127.0.0.1:{node.port}")
