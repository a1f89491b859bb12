"""The services of a gateway as the supervisor runs them: the node, the facade, the edge, and the sockets that join them.

The private directory holds the Unix sockets and the configurations that Envoy reads; its mode is 0700 and it goes with the gateway.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from core_grpc.settings import ServerSettings
from core_grpc.transports.envoy_host import NodeListener, envoy_command, node_config, node_environment, why_not_envoy
from tensorgate.child import Child, Command
from tensorgate.edge import admin_socket, edge_command
from tensorgate.ports import Door
from tensorgate.settings import EdgeProcessSettings
from tensorgate.small_http import request, wait_for_ok
from tensorgate.supervisor import Drain, Service, drain_by_signal, drain_when_asked

_SOCKET_PATH_BYTES = 100
"""A Unix socket's path may have 107 bytes on Linux and 103 on macOS."""


_PREFIX = "tensorgate-"
_LOCK = "lock"
_STALE_S = 10.0
"""A directory this young may have been made and not yet locked."""
_NODE_CONCURRENCY = 1
"""Worker threads of a node's Envoy: they share one Python event loop, which is what is busy."""


@contextmanager
def run_directory() -> Iterator[Path]:
    """A private directory for sockets, removed afterwards; what killed gateways of this user have left is removed now."""
    parent = Path(tempfile.gettempdir())
    if len(f"{parent}/{_PREFIX}12345678/edge-admin.sock") > _SOCKET_PATH_BYTES:
        parent = Path("/tmp")  # noqa: S108  # mkdtemp makes a new one that only we may enter.
    remove_stale_directories(parent)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    with (directory / _LOCK).open("w") as lock:
        # Held as long as this process lives, however it ends: a directory whose lock is free belongs to nobody.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def remove_stale_directories(parent: Path) -> None:
    """Removes this user's run directories below ``parent`` whose gateway no longer lives."""
    for lock_file in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock_file.open("r") as lock:
            info = os.fstat(lock.fileno())
            if info.st_uid == os.getuid() and time.time() - info.st_mtime > _STALE_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)


def core_socket(directory: Path, name: str = "node") -> Path:
    """A node's private Unix socket."""
    return directory / ("core.sock" if name == "node" else f"{name}.sock")


def nodes_socket(directory: Path) -> Path:
    """The edge's private Unix socket, behind which are all nodes."""
    return directory / "nodes.sock"


def node_names(count: int) -> list[str]:
    """``node`` for one, else numbered from 1."""
    return ["node"] if count == 1 else [f"node-{number}" for number in range(1, count + 1)]


def facade_socket(directory: Path) -> Path:
    """The facade's private Unix socket."""
    return directory / "facade.sock"


def chosen_transport(server: ServerSettings) -> tuple[str, str]:
    """``envoy`` or ``grpcio``, and why not envoy where ``auto`` had to fall back (else empty)."""
    if server.transport != "auto":
        return server.transport, ""
    why = why_not_envoy()
    return ("grpcio", why) if why else ("envoy", "")


def node_service(
    server: ServerSettings,
    directory: Path,
    doors: Sequence[Door],
    environ: Mapping[str, str],
    unix_socket: str,
    *,
    name: str = "node",
    drain: Drain = drain_when_asked,
    step_aside: Drain | None = None,
) -> Service:
    """The node behind the first of ``doors`` and, unless empty, a private Unix socket; the second door, of metrics, it opens by itself.

    Args:
        drain, step_aside: as ``Service`` has them.

    Raises:
        EnvoyConfigError: the transport is envoy and something for it is missing.
    """
    door = doors[0]
    listens = {"HOST": door.host, "PORT": str(door.port), "UNIX_SOCKET": unix_socket}
    env = {**environ, **{f"TENSORGATE_SERVER_{name}": value for name, value in listens.items()}}
    if len(doors) > 1:
        env["TENSORGATE_SERVER_METRICS_PORT"] = str(doors[1].port)
    if chosen_transport(server)[0] == "grpcio":
        command = Command([sys.executable, "-m", "core_grpc"], env)
    else:
        config = directory / f"{name}.yaml"
        listener = NodeListener(door.host, door.port, str(directory / f"{name}-admin.sock"), unix_socket)
        config.write_text(node_config(listener), encoding="utf-8")
        argv = envoy_command(config, concurrency=_NODE_CONCURRENCY, log_level=server.log_level)
        command = Command(argv, node_environment(env))
    return Service(name, command, drain=drain, step_aside=step_aside, doors=doors)


def facade_service(directory: Path, environ: Mapping[str, str], public_url: str, core: Path) -> Service:
    """The facade, joined by Unix sockets to the edge before it and to ``core``: the node, or the edge's way to all nodes."""
    socket = facade_socket(directory)
    env = {
        "TENSORGATE_FACADE_PUBLIC_URL": public_url,
        **environ,
        "TENSORGATE_FACADE_UNIX_SOCKET": str(socket),
        "TENSORGATE_FACADE_CORE_ADDRESS": f"unix:{core}",
    }

    async def wait_ready(_: Child) -> None:
        await wait_for_ok(socket, "/health/live")

    return Service("facade", Command([sys.executable, "-m", "rest_facade"], env), wait_ready, drain_by_signal)


def edge_service(
    settings: EdgeProcessSettings, directory: Path, door: Door, environ: Mapping[str, str], *, waits_for_streams: bool = False
) -> Service:
    """The edge behind ``door``. Its configuration is written into ``directory`` and checked.

    Args:
        waits_for_streams: whether its drain waits for streams of inferences. Not where the node is drained next: the node ends them.

    Raises:
        EnvoyConfigError, SettingsError: see ``edge_command``.
    """
    argv = edge_command(settings, directory)
    admin = admin_socket(directory)

    async def wait_ready(_: Child) -> None:
        await wait_for_ok(admin, "/ready")

    async def drain(_: Child) -> None:
        await _drain_envoy(admin, ("core_watches",) if waits_for_streams else ("core_watches", "core_streams"))

    return Service("edge", Command(argv, environ, watches_control=False), wait_ready, drain, doors=[door])


async def wait_for_core(directory: Path, timeout_s: float) -> bool:
    """Whether the edge sees a healthy node within ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                clusters = await request(admin_socket(directory), "GET", "/clusters")
                if any(line.startswith("core::") and line.endswith("::health_flags::healthy") for line in clusters.body.splitlines()):
                    return True
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False


async def _drain_envoy(admin: Path, not_awaited: Sequence[str]) -> None:
    """Answers now end their connections, no new ones are taken, and what is in flight finishes, save for the calls of some clusters."""
    await request(admin, "POST", "/healthcheck/fail")
    await request(admin, "POST", "/drain_listeners?inboundonly")
    while True:
        others = [await _active_requests(admin, f"cluster.{name}.upstream") for name in not_awaited]
        if await _active_requests(admin, "http.edge.downstream") <= sum(others):
            return
        await asyncio.sleep(0.05)


async def _active_requests(admin: Path, where: str) -> int:
    answer = await request(admin, "GET", f"/stats?filter=^{where}_rq_active$&usedonly")
    # Nothing at all where there never was a request.
    return int(answer.body.rpartition(":")[2] or 0)
