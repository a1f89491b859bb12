"""The programs behind the commands: the whole gateway, or one of its parts, each read from the environment."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations
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
    node_names,
    node_service,
    nodes_socket,
    run_directory,
    wait_for_core,
)
from tensorgate.supervisor import Service, Supervisor, drain_at_once, drain_when_asked

_CORE_WAIT_S = 3.0
"""How long a start waits for the edge to see the node; longer only when no model answers."""
_LAST_PORT = 65535
_MARGIN_S = 5.0
"""Beyond the children's own grace, so that they end by themselves."""


def serve(environ: Mapping[str, str]) -> int:
    """The whole gateway.

    Raises:
        SettingsError, DoorError, EnvoyConfigError: it cannot start; one line.
    """
    started = time.monotonic()
    settings = load_settings(StackSettings, environ)
    names = node_names(settings.serve.nodes)
    # A listener that asks who calls may be reached by others.
    edge_door = _door(settings.edge.host, settings.edge.port, "--port", insecure=settings.edge.insecure or settings.auth.is_on)
    doors: list[list[Door]] = []
    for number in range(len(names)):
        doors.append(_node_doors(settings, number, [edge_door, *chain.from_iterable(doors)]))
    for one, other in combinations([edge_door, *chain.from_iterable(doors)], 2):
        if one == replace(other, flag=one.flag):
            hint = " (each node takes the next ports)" if len(names) > 1 else ""
            raise SettingsError(f"{one.flag} and {other.flag} are both {one.port}{hint}: choose two")
    with run_directory() as directory:
        edge = _joined_edge(settings, directory, edge_door, names)
        child_env = {**environ, **_share_of_machine(settings, len(names))}
        _say_transport(settings.server.transport, chosen_transport(settings.server))
        # The edge in front is stopped first: nobody is left who would have to notice that a node goes away. One alone makes way for nobody.
        step_aside = drain_when_asked if len(names) > 1 else None
        nodes = [
            node_service(
                settings.server,
                directory,
                own,
                child_env,
                str(core_socket(directory, name)),
                name=name,
                drain=drain_at_once,
                step_aside=step_aside,
            )
            for name, own in zip(names, doors, strict=True)
        ]
        core = Path(edge.private_socket) if edge.private_socket else core_socket(directory)
        services = [
            *nodes,
            facade_service(directory, child_env, edge_door.url(), core),
            edge_service(EdgeProcessSettings(edge, settings.limits, settings.drain, settings.auth), directory, edge_door, environ),
        ]

        async def on_ready() -> None:
            await wait_for_core(directory, _CORE_WAIT_S)
            sys.stdout.write(await banner(edge_door, doors, time.monotonic() - started))
            sys.stdout.flush()

        return _supervise(services, directory, settings.drain.notice_s + settings.drain.grace_s, on_ready)


def _node_doors(settings: StackSettings, number: int, others: Sequence[Door]) -> list[Door]:
    """The listeners of a node, counted from 0: gRPC and, where it has one, metrics. A port of 0 is any free one that no other has."""
    server = settings.server

    def after(port: int) -> int:
        if port + number > _LAST_PORT:
            raise SettingsError(f"serve.nodes: there is no port for node {number + 1}: {port} is the first node's")
        return port + number if port else 0

    moved = replace(server, port=after(server.port), metrics_port=after(server.metrics_port))
    # A listener that asks who calls may be reached by others; the metrics ask nobody.
    is_open = settings.edge.insecure or settings.auth.is_on
    grpc = _apart(lambda: [_door(moved.host, moved.port, "--grpc-port", insecure=is_open)], others, is_any=not moved.port)
    insecure = settings.edge.insecure
    return grpc + _apart(lambda: _metrics_door(moved, insecure=insecure), [*others, *grpc], is_any=not moved.metrics_port)


def _apart(choose: Callable[[], list[Door]], others: Sequence[Door], *, is_any: bool) -> list[Door]:
    """Chooses again while a free port is one of our own doors: nothing listens there yet, so the system may hand it out twice."""
    doors = choose()
    while is_any and any(door == replace(other, flag=door.flag) for door in doors for other in others):
        doors = choose()
    return doors


def _joined_edge(settings: StackSettings, directory: Path, door: Door, names: Sequence[str]) -> EdgeSettings:
    """The edge's settings with its address and those of the services behind it."""
    return replace(
        settings.edge,
        host=door.host,
        port=door.port,
        core=",".join(f"unix:{core_socket(directory, name)}" for name in names),
        nodes_file="",
        facade=f"unix:{facade_socket(directory)}",
        private_socket=str(nodes_socket(directory)) if len(names) > 1 else "",
    )


def _share_of_machine(settings: StackSettings, nodes: int) -> dict[str, str]:
    """What each of several nodes is told: its part of the cores, where the setting leaves that open."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if nodes > cores:
        _report(f"{nodes} nodes share {cores} cores: more nodes than cores help only models that wait for something else")
    if nodes == 1 or settings.models.cpu_slots or settings.models.intra_op_threads:
        return {}
    return {"TENSORGATE_MODELS_CPU_SLOTS": str(max(cores // nodes, 1))}


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
    chosen = chosen_transport(settings.server)
    _say_transport(settings.server.transport, chosen)
    if chosen[0] == "grpcio":
        _become(
            [sys.executable, "-m", "core_grpc"], {**environ, **_metrics_environ(metrics_door), "TENSORGATE_SERVER_PORT": str(door.port)}
        )
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
