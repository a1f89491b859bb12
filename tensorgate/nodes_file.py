"""The file that tells a running edge which nodes there are: Envoy watches its directory, so a change needs no restart.

The format is Envoy's own (a ``DiscoveryResponse`` with one ``ClusterLoadAssignment`` named ``nodes``, as JSON,
https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/discovery/v3/discovery.proto), so localities, weights and priorities can be
written into it by other means; those are kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core_grpc.settings import SettingsError
from tensorgate.clusters import NODES, address_of, is_host_name, load_assignment

_ASSIGNMENT_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def list_nodes(path: Path) -> list[str]:
    """The nodes of a file; none where there is no file.

    Raises:
        SettingsError: it cannot be read or is no file of nodes.
    """
    return _endpoints(_read(path))


def add_nodes(path: Path, endpoints: Sequence[str]) -> list[str]:
    """Adds nodes, in the first locality, and gives the list as it is then. Those that are there already stay as they are.

    Raises:
        SettingsError: an endpoint is no ``unix:/path`` or ``address:port``, or the file cannot be read or written.
    """
    addresses = {endpoint: _literal_address(endpoint) for endpoint in endpoints}

    def add(assignment: dict[str, Any]) -> None:
        known = _endpoints(assignment)
        first = assignment["endpoints"][0].setdefault("lb_endpoints", [])
        first.extend({"endpoint": {"address": address}} for endpoint, address in addresses.items() if endpoint not in known)

    _edit(path, add)
    return list_nodes(path)


def remove_nodes(path: Path, endpoints: Sequence[str]) -> list[str]:
    """Removes nodes and gives the list as it is then.

    Raises:
        SettingsError: one is not there, or the file cannot be read or written.
    """

    def remove(assignment: dict[str, Any]) -> None:
        missing = set(endpoints) - {
            endpoint_of(entry) for locality in assignment["endpoints"] for entry in locality.get("lb_endpoints", [])
        }
        if missing:
            raise SettingsError(f"{path.name}: has no node {', '.join(sorted(missing))}")
        for locality in assignment["endpoints"]:
            locality["lb_endpoints"] = [entry for entry in locality.get("lb_endpoints", []) if endpoint_of(entry) not in endpoints]

    _edit(path, remove)
    return list_nodes(path)


def endpoint_of(entry: dict[str, Any]) -> str:
    """Envoy's ``LbEndpoint`` as ``unix:/path`` or ``host:port``."""
    address = entry["endpoint"]["address"]
    if "pipe" in address:
        return f"unix:{address['pipe']['path']}"
    socket = address["socket_address"]
    host = socket["address"]
    return f"[{host}]:{socket['port_value']}" if ":" in host else f"{host}:{socket['port_value']}"


def _endpoints(assignment: dict[str, Any]) -> list[str]:
    return [endpoint_of(entry) for locality in assignment["endpoints"] for entry in locality.get("lb_endpoints", [])]


def _literal_address(endpoint: str) -> dict[str, Any]:
    address = address_of("node", endpoint)
    if "socket_address" in address and is_host_name(address["socket_address"]["address"]):
        raise SettingsError(f"node: wanted unix:/path or address:port, got the name {endpoint!r}; names are for the edge's setting core")
    return address


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return load_assignment(NODES, [])
    try:
        assignment: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["resources"][0]
        is_nodes = assignment["cluster_name"] == NODES and bool(assignment["endpoints"])
        _endpoints(assignment)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError):
        is_nodes = False
    if not is_nodes:
        raise SettingsError(f"{path.name}: is no file of nodes: wanted one ClusterLoadAssignment with the cluster_name {NODES}")
    return assignment


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Reads, changes and replaces the file: a reader sees the old one or the new one, and two who edit do not lose each other's work."""
    try:
        with _locked(path):
            assignment = _read(path)
            change(assignment)
            _replace(path, json.dumps({"resources": [{"@type": _ASSIGNMENT_TYPE, **assignment}]}, indent=1) + "\n")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The directory: the file itself is another one after each change.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            # Readable by an edge of another user, as a file made by hand would be.
            os.fchmod(file.fileno(), 0o644)
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
