"""Where the edge's requests go: the nodes and the facade as Envoy's clusters.

Nodes are a fixed list, host names that are looked up again and again (DNS), or a file that Envoy watches (``nodes_file.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_grpc.settings import SettingsError
from tensorgate.settings import EdgeSettings, listed

NODES = "nodes"
"""The name under which a file of nodes has them."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where requests go, as Envoy writes it."""

    discovery: str
    """``STATIC`` for addresses and Unix sockets, ``STRICT_DNS`` for host names, ``EDS`` for a file."""
    load_assignment: dict[str, Any]
    """Empty for a file."""
    nodes_file: str = ""
    """The file's path."""

    @property
    def is_spread(self) -> bool:
        """Whether there may be more than one server."""
        return self.discovery != "STATIC" or len(self.load_assignment["endpoints"][0]["lb_endpoints"]) > 1

    @property
    def directory(self) -> str:
        """Of the file: replacing a file is a change of its directory."""
        return str(Path(self.nodes_file).parent)


def core_cluster(edge: EdgeSettings) -> Cluster:
    """The nodes.

    Raises:
        SettingsError: the file is not there, or an endpoint is neither ``unix:/path`` nor ``host:port``.
    """
    if not edge.nodes_file:
        return cluster("core", listed(edge.core))
    path = Path(edge.nodes_file).absolute()
    if path.suffix != ".json":
        raise SettingsError(f"edge.nodes_file: wanted a name that ends with .json, by which Envoy knows the format, got {path.name!r}")
    if not path.is_file():
        raise SettingsError(f"edge.nodes_file: {edge.nodes_file} is not there: make it with `tensorgate nodes`")
    return Cluster("EDS", {}, str(path))


def cluster(name: str, endpoints: Iterable[str]) -> Cluster:
    """The cluster of some ``unix:/path`` and ``host:port`` endpoints.

    Raises:
        SettingsError: none is given, one is neither, or host names and Unix sockets are mixed.
    """
    addresses = [address_of(f"edge.{name}", endpoint) for endpoint in endpoints]
    if not addresses:
        raise SettingsError(f"edge.{name}: wanted unix:/path or host:port, got nothing")
    hosts = [address["socket_address"]["address"] for address in addresses if "socket_address" in address]
    by_name = any(is_host_name(host) for host in hosts)
    if by_name and len(hosts) != len(addresses):
        raise SettingsError(f"edge.{name}: host names and Unix sockets cannot be mixed; write addresses instead of names")
    return Cluster("STRICT_DNS" if by_name else "STATIC", load_assignment(name, addresses))


def load_assignment(name: str, addresses: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Envoy's ``ClusterLoadAssignment`` of some addresses."""
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}]}


def address_of(where: str, endpoint: str) -> dict[str, Any]:
    """An endpoint as Envoy's ``Address``.

    Raises:
        SettingsError: it is neither ``unix:/path`` nor ``host:port``; the text begins with ``where``.
    """
    if endpoint.startswith("unix:/"):
        return {"pipe": {"path": endpoint.removeprefix("unix:")}}
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingsError(f"{where}: wanted unix:/path or host:port, got {endpoint!r}")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def is_host_name(host: str) -> bool:
    """Whether a host is a name to look up, and no address."""
    return re.fullmatch(r"[0-9.]+|.*:.*", host) is None
