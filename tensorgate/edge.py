"""The edge: one plain Envoy in front of the nodes and the facade. Renders ``envoy/edge.yaml.j2`` from the settings and checks it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_grpc.settings import SettingsError
from core_grpc.transports.envoy_host import ROOT, envoy_command, render_template, validate_config
from tensorgate.clusters import cluster, core_cluster
from tensorgate.settings import LOOPBACK_NAMES, EdgeProcessSettings, is_loopback, listed

DESCRIPTORS = ROOT / "protos" / "descriptors.binpb"
"""What the transcoder knows of the services."""
_MAX_HEAP_BYTES = 1 << 30

_GRPC_CODES = {
    400: 3,
    401: 16,
    403: 7,
    404: 5,
    408: 4,
    413: 8,
    415: 3,
    421: 7,
    426: 9,
    429: 8,
    431: 8,
    500: 13,
    501: 12,
    502: 14,
    503: 14,
    504: 4,
    507: 14,
}
"""HTTP statuses of Envoy's own answers to google.rpc.Code, the inverse of the canonical table."""


@dataclass(frozen=True, slots=True)
class LocalReply:
    """The JSON body of Envoy's own answers with one status, in the form of one door."""

    form: str
    """``v2`` for ``{"error"}``, ``status`` for ``{"code","message","details"}``."""
    status: int
    """0 for every status that has no reply of its own."""
    code: int
    message: str
    """Text, or an Envoy format such as %LOCAL_REPLY_BODY%."""


def edge_config(settings: EdgeProcessSettings, admin_socket: str, descriptors: Path = DESCRIPTORS) -> str:
    """The commented YAML that the edge runs.

    Raises:
        SettingsError: an endpoint is not ``unix:/path`` or ``host:port``, or management is allowed with several nodes.
    """
    edge, limits = settings.edge, settings.limits
    names = _hostnames(settings)
    core = core_cluster(edge)
    if core.is_spread and edge.management:
        raise SettingsError(
            "edge.management: wanted false with several nodes, got true: it would reach one of them; call each node's own listener"
        )
    origins = [re.escape(origin) for origin in listed(edge.cors_origins)]
    loopback_origin = "https?://(localhost|127\\.0\\.0\\.1|\\[::1\\])(:[0-9]+)?"
    patterns = [re.escape(name).replace("\\*", "[^/:]+") for name in names if name not in LOOPBACK_NAMES]
    own_origins = [f"https?://{pattern}(:[0-9]+)?" for pattern in patterns]
    allowed = [loopback_origin, *own_origins, *origins]
    values = {
        "edge": edge,
        "admin_socket": admin_socket,
        "descriptors": str(descriptors),
        "domains": names or ["*"],
        "cors_origin_regexes": allowed,
        "origin_regex": "|".join(allowed) if names else "",
        "replies": local_replies(limits.max_message_bytes, limits.max_request_s),
        "max_body_bytes": limits.max_message_bytes,
        "max_request_s": f"{limits.max_request_s:g}",
        "stream_idle_s": f"{edge.stream_idle_s:g}",
        "max_heap_bytes": _MAX_HEAP_BYTES,
        "core": core,
        "clusters": ["core", "core_watches", "core_streams", *(["core_sequences", "core_sequence_streams"] if core.is_spread else [])],
        "hedge_after_s": f"{edge.hedge_after_s:g}" if edge.hedge_after_s else "",
        "facade": cluster("facade", listed(edge.facade)),
        "identity": _identity(settings) if settings.auth.is_on else None,
    }
    return render_template("edge.yaml.j2", values)


def edge_command(settings: EdgeProcessSettings, directory: Path) -> list[str]:
    """Writes the configuration into ``directory``, has Envoy check it, and gives the command line that runs it.

    Raises:
        EnvoyConfigError: Envoy refused it.
        SettingsError: see ``edge_config``.
    """
    config = directory / "edge.yaml"
    config.write_text(edge_config(settings, str(admin_socket(directory))), encoding="utf-8")
    validate_config(config)
    return envoy_command(config, concurrency=settings.edge.concurrency, log_level=settings.edge.log_level)


def admin_socket(directory: Path) -> Path:
    """The Unix socket of the edge's admin interface."""
    return directory / "edge-admin.sock"


def local_replies(max_body_bytes: int, max_request_s: float) -> list[LocalReply]:
    """What Envoy's own answers say, first match first. Texts that would tell about the inside are replaced, limits name their value."""
    body = "%LOCAL_REPLY_BODY%"
    texts = {
        # Envoy has no words of its own for some of what it cannot read, such as a null byte in a path.
        400: f"the request cannot be read: {body}",
        413: f"limits.max_message_bytes: the body is larger than {max_body_bytes} bytes",
        431: "the request's headers are larger than 32 KiB or more than 100",
        502: "the server behind the edge broke off; try again",
        503: "the server behind the edge does not answer; it may be starting, draining or overloaded: try again",
        507: "the server behind the edge broke off, and the body is larger than what is kept to ask another one",
        504: f"the request took longer than its deadline or than limits.max_request_s, {max_request_s:g} s",
    }
    v2 = [LocalReply("v2", status, 0, text) for status, text in texts.items()]
    v2.append(LocalReply("v2", 0, 0, body))
    return v2 + [LocalReply("status", status, code, texts.get(status, body)) for status, code in _GRPC_CODES.items()]


def _identity(settings: EdgeProcessSettings) -> dict[str, Any]:
    """What the filters that ask who calls are given."""
    auth = settings.auth
    jwt = {"issuer": auth.jwt_issuer, "audience": auth.jwt_audience, "jwks_file": auth.jwt_jwks_file}
    given = [name for name, value in jwt.items() if value]
    if given and len(given) < len(jwt):
        missing = [name for name, value in jwt.items() if not value]
        raise SettingsError(f"TENSORGATE_AUTH_JWT_{missing[0].upper()}: required with jwt_{given[0]}, not set")
    for name, path in (("KEYS_FILE", auth.keys_file), ("JWT_JWKS_FILE", auth.jwt_jwks_file)):
        if path and not (path.isascii() and Path(path).is_file()):
            raise SettingsError(f"TENSORGATE_AUTH_{name}: wanted a file with an ASCII path, got {path}")
    # A node that is not on a private Unix socket believes no headers: it looks at the key itself.
    hides = all(endpoint.startswith("unix:") for endpoint in [*listed(settings.edge.core), *listed(settings.edge.facade)])
    keys_file = str(Path(auth.keys_file).absolute()) if auth.keys_file else ""
    return {"keys_file": keys_file, "hides_credentials": hides, "jwt": jwt if given else None}


def _hostnames(settings: EdgeProcessSettings) -> list[str]:
    """The host names that are served; none means all."""
    given = listed(settings.edge.hostnames)
    if given or is_loopback(settings.edge.host):
        return list(dict.fromkeys([*LOOPBACK_NAMES, *given]))
    return []
