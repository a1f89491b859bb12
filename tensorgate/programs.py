"""The programs behind the commands: the whole gateway, or one of its parts, each read from the environment."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from core_grpc.settings import NodeSettings, ServerSettings, SettingsError, load_settings
from tensorgate.banner import banner
from tensorgate.child import tell_service_manager
from tensorgate.edge import admin_socket, edge_config
from tensorgate.ports import Door
from tensorgate.settings import EdgeProcessSettings, EdgeSettings, StackSettings
from tensorgate.stack import (
    chosen_transport,
    core_socket,
    edge_service,
    facade_service,
    facade_socket,
    node_service,
    run_directory,
    wait_for_core,
)
from tensorgate.supervisor import Service, Supervisor

_CORE_WAIT_S = 3.0
"""How long a start waits for the edge to see the node; longer only when no model answers."""
_MARGIN_S = 5.0
"""Beyond the children's own grace, so that they end by themselves."""


def serve(environ: Mapping[str, str]) -> int:
    """The whole gateway.

    Raises:
        SettingsError, DoorError, EnvoyConfigError: it cannot start; one line.
    """
    started = time.monotonic()
    settings = load_settings(StackSettings, environ)
    # A listener that asks who calls may be reached by others.
    is_open = settings.edge.insecure or settings.auth.is_on
    edge_door = _door(settings.edge.host, settings.edge.port, "--port", insecure=is_open)
    node_door = _door(settings.server.host, settings.server.port, "--grpc-port", insecure=is_open)
    metrics_door = _metrics_door(settings.server, insecure=settings.edge.insecure)
    if edge_door == replace(node_door, flag=edge_door.flag):
        raise SettingsError(f"--port and --grpc-port are both {edge_door.port}: choose two")
    with run_directory() as directory:
        # The edge in front is stopped first: nobody is left who would have to notice that the node goes away.
        child_env = {**environ, **_metrics_environ(metrics_door), "TENSORGATE_DRAIN_NOTICE_S": "0"}
        edge = replace(
            settings.edge,
            host=edge_door.host,
            port=edge_door.port,
            core=f"unix:{core_socket(directory)}",
            facade=f"unix:{facade_socket(directory)}",
        )
        _say_transport(settings.server.transport, chosen_transport(settings.server))
        services = [
            node_service(settings.server, directory, [node_door, *metrics_door], child_env, str(core_socket(directory))),
            facade_service(directory, child_env, edge_door.url()),
            edge_service(EdgeProcessSettings(edge, settings.limits, settings.drain, settings.auth), directory, edge_door, environ),
        ]

        async def on_ready() -> None:
            await wait_for_core(directory, _CORE_WAIT_S)
            sys.stdout.write(await banner(edge_door, node_door, metrics_door, time.monotonic() - started))
            sys.stdout.flush()

        return _supervise(services, directory, settings.drain.grace_s, on_ready)


def edge(environ: Mapping[str, str], *, print_only: bool) -> int:
    """The edge alone, or its configuration.

    Raises:
        SettingsError, DoorError, EnvoyConfigError: it cannot start; one line.
    """
    settings = load_settings(EdgeProcessSettings, environ)
    with run_directory() as directory:
        if print_only:
            # Through the same steps, so that what is printed was checked by Envoy.
            edge_service(settings, directory, _as_given(settings.edge), environ, waits_for_streams=True)
            sys.stdout.write(edge_config(settings, str(admin_socket(directory))))
            return 0
        door = _door(settings.edge.host, settings.edge.port, "--port", insecure=settings.edge.insecure or settings.auth.is_on)
        settings = replace(settings, edge=replace(settings.edge, host=door.host, port=door.port))
        service = edge_service(settings, directory, door, environ, waits_for_streams=True)
        return _supervise(
            [service],
            directory,
            settings.drain.grace_s,
            _announce(f"edge listens on {door.url()}; Envoy's admin interface: {admin_socket(directory)}"),
        )


def node(environ: Mapping[str, str], *, insecure: bool | None) -> int:
    """A node alone.

    Raises:
        SettingsError, DoorError, EnvoyConfigError: it cannot start; one line.
    """
    settings = load_settings(NodeSettings, environ)
    door = _door(settings.server.host, settings.server.port, "--port", insecure=bool(insecure) or settings.auth.is_on)
    metrics_door = _metrics_door(settings.server, insecure=bool(insecure))
    environ = {**environ, **_metrics_environ(metrics_door)}
    chosen = chosen_transport(settings.server)
    _say_transport(settings.server.transport, chosen)
    if chosen[0] == "grpcio":
        _become([sys.executable, "-m", "core_grpc"], {**environ, "TENSORGATE_SERVER_PORT": str(door.port)})
    with run_directory() as directory:
        service = node_service(settings.server, directory, [door, *metrics_door], environ, settings.server.unix_socket)
        # It also waits for an edge to notice that it goes away.
        grace_s = settings.drain.notice_s + settings.drain.grace_s
        return _supervise([service], directory, grace_s, _announce(_node_line(door, metrics_door)))


def facade(environ: Mapping[str, str], *, insecure: bool | None) -> int:
    """The facade alone; this process becomes it.

    Raises:
        DoorError: others could reach it and nobody said that they may.
    """
    host = environ.get("TENSORGATE_FACADE_HOST", "127.0.0.1")
    if not environ.get("TENSORGATE_FACADE_UNIX_SOCKET"):
        Door(host, 0, "--port").resolved(insecure=bool(insecure))
    _become([sys.executable, "-m", "rest_facade"], environ)


def _door(host: str, port: int, flag: str, *, insecure: bool) -> Door:
    return Door(host, port, flag).resolved(insecure=insecure)


def _metrics_door(server: ServerSettings, *, insecure: bool) -> list[Door]:
    """The node's listener for metrics; nothing where it has none."""
    return [_door(server.metrics_host, server.metrics_port, "--metrics-port", insecure=insecure)] if server.metrics else []


def _metrics_environ(doors: Sequence[Door]) -> dict[str, str]:
    return {"TENSORGATE_SERVER_METRICS_PORT": str(doors[0].port)} if doors else {}


def _node_line(door: Door, metrics: Sequence[Door]) -> str:
    return ", ".join([f"node listens on {door.host}:{door.port}", *(f"metrics on {item.url()}/metrics" for item in metrics)])


def _as_given(settings: EdgeSettings) -> Door:
    return Door(settings.host, settings.port, "--port")


def _supervise(services: Sequence[Service], directory: Path, grace_s: float, on_ready: Callable[[], Awaitable[None]]) -> int:
    async def ready() -> None:
        await on_ready()
        tell_service_manager("READY=1")

    supervisor = Supervisor(services, directory, output=sys.stderr.buffer, report=_report, grace_s=grace_s + _MARGIN_S)
    return asyncio.run(supervisor.run(ready))


def _report(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"tensorgate: {line}\n")
        sys.stderr.flush()


def _announce(line: str) -> Callable[[], Awaitable[None]]:
    async def on_ready() -> None:
        _report(line)

    return on_ready


def _say_transport(asked: str, chosen: tuple[str, str]) -> None:
    transport, why = chosen
    if asked == "auto" and why:
        _report(f"transport {transport}, not envoy: {why}")


def _become(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(argv[0], list(argv), dict(environ))  # noqa: S606  # No shell is wanted.
