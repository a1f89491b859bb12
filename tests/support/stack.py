"""The real thing, started as a user starts it: ``tensorgate serve`` in its own process, on free ports, with models of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from core_grpc.types import Datatype
from tests.support.doors import Addresses
from tests.support.models import (
    write_addsub_i32,
    write_badload,
    write_big_out,
    write_div_fp32,
    write_gather,
    write_id,
    write_identity,
    write_nonzero,
    write_opt,
)
from tests.support.programs import Program

TRANSPORTS = ("envoy", "grpcio")
SLOW_MS = 300
DELAY_MS = 50
"""How long the batchers of the models below wait for others, so that callers meet in one batch."""


@dataclass(frozen=True)
class Stack:
    """A running gateway."""

    addresses: Addresses
    transport: str
    program: Program

    def get(self, path: str) -> httpx.Response:
        """GET through the edge."""
        return httpx.get(self.addresses.edge_url + path, timeout=10.0)


def write_repository(repository: Path) -> None:
    """The models that the vectors and the tests of callers speak of."""
    for datatype in Datatype:
        write_id(repository, datatype)
    write_addsub_i32(repository)
    write_div_fp32(repository)
    write_nonzero(repository)
    write_opt(repository)
    write_big_out(repository)
    write_gather(repository, f"[batching]\nmax_queue_delay_ms = {DELAY_MS}\n")
    write_badload(repository)
    one_value = {"X": ("FP32", [-1, 1])}
    write_identity(repository, "id_fails", one_value, "max_batch_size = 8\n[identity]\nfail_value = 99.0\n")
    write_identity(repository, "slow", one_value, f"max_batch_size = 8\n[identity]\ndelay_ms = {SLOW_MS}\n")
    delayed = f"max_batch_size = 8\n[warmup]\ncount = 0\n[batching]\nmax_queue_delay_ms = {DELAY_MS}\n"
    write_identity(repository, "delayed_fp32", {"X": ("FP32", [-1, -1])}, delayed)
    write_identity(repository, "delayed_bytes", {"X": ("BYTES", [-1, -1])}, delayed)
    write_identity(repository, "a b", one_value, "max_batch_size = 8\n")
    write_identity(repository, "cached", {"X": ("FP32", [-1, -1])}, "max_batch_size = 8\n[response_cache]\nenable = true\n")
    write_identity(repository, "slow_unbatched", one_value, f"max_batch_size = 1\n[identity]\ndelay_ms = {SLOW_MS}\n")


@contextmanager
def running_stack(
    free_port: Callable[[], int], transport: str, repository: Path | None, environ: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """``tensorgate serve`` from ready to gone; without a repository it serves the demo model."""
    http_port, grpc_port = free_port(), free_port()
    arguments = ["serve", "--port", str(http_port), "--transport", transport]
    # Whoever chooses a port of its own asks the edge only.
    arguments += [] if "TENSORGATE_SERVER_PORT" in (environ or {}) else ["--grpc-port", str(grpc_port)]
    arguments += ["--models", str(repository)] if repository else []
    # Nothing is in front of these listeners: nobody needs time to notice a drain.
    with Program("tensorgate", *arguments, env={"TENSORGATE_DRAIN_NOTICE_S": "0", **(environ or {})}) as program:
        # Its own word, not only an answering port: everything behind the edge is there.
        program.wait_for("Tensorgate is ready")
        edge = f"127.0.0.1:{http_port}"
        yield Stack(Addresses(f"http://{edge}", edge, f"127.0.0.1:{grpc_port}"), transport, program)
