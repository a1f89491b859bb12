"""The settings of the edge and of the stack that ``tensorgate serve`` starts. The rules are those of ``core_grpc.settings``."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address

from core_grpc.settings import AuthSettings, DrainSettings, LimitsSettings, ModelsSettings, ServerSettings, UsageSettings, bounded, one_of


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """The edge: the public listener that speaks gRPC, gRPC-Web and REST."""

    host: str = "127.0.0.1"
    """The address of the public listener. Anything but a loopback address needs callers with an identity (`[auth]`), or `insecure`."""
    port: int = bounded(8080, 0, 65535)
    """The port of the public listener. 0 takes a free one."""
    core: str = "127.0.0.1:50051"
    """Where the nodes are: `unix:/path` or `host:port`, several separated by commas."""
    nodes_file: str = ""
    """A file that says where the nodes are, instead of `core`: `tensorgate nodes` makes it, and a change of it takes no restart."""
    private_socket: str = ""
    """Path of a Unix socket on which the edge takes gRPC for the nodes and asks nobody who they are: the facade's way to all nodes."""
    max_retries: int = bounded(2, 0, 10)
    """With several nodes: how often a unary inference outside a sequence is tried again on another node, when one refuses it, breaks off
    or says UNAVAILABLE."""
    retry_budget_percent: int = bounded(100, 1, 100)
    """With several nodes: how many retries may run at once, as a part of the requests in flight (and always 64). When one of two nodes
    dies, half of the requests need one."""
    retry_body_bytes: int = bounded(8 << 20, 0, (1 << 31) - 1)
    """With several nodes: the largest body that is kept until the answer begins, to try again with. Larger ones are tried once."""
    hedge_after_s: float = bounded(0.0, 0, 86400)
    """With several nodes: ask a second node when the first has not begun to answer a unary inference for so long, in seconds; the first
    answer is taken. 0: never. Both nodes do the work."""
    facade: str = "127.0.0.1:8000"
    """Where the facade is: `unix:/path` or `host:port`."""
    hostnames: str = ""
    """Host names that callers may use, separated by commas, besides the loopback names. Empty: only loopback names on a loopback
    address, any name elsewhere. Other names are refused: a web page must not drive a local server by DNS rebinding."""
    cors_origins: str = ""
    """Origins of web pages that may call, besides pages from a loopback address, separated by commas: `https://app.example`."""
    management: bool = False
    """Let callers load and unload models, register shared memory, and read and change trace and log settings through the edge. What
    the node's own settings allow is always allowed on the node's own listener. Where callers have rights, `management` is one of them, and
    this setting says nothing."""
    concurrency: int = bounded(1, 1, 256)
    """Worker threads of the edge's Envoy."""
    max_connections: int = bounded(2000, 1, 1_000_000)
    """Connections open at a time. More are closed at once."""
    max_concurrent_streams: int = bounded(256, 1, 65536)
    """Calls in flight on one HTTP/2 connection."""
    stream_idle_s: float = bounded(3600.0, 1, 1_000_000)
    """How long a stream of inferences (ModelStreamInfer, Converse, Watch, …) may be silent in both directions, in seconds. Streams
    have no other limit of time than their caller's deadline."""
    max_pending_requests: int = bounded(2048, 1, 1_000_000)
    """Requests in flight to the nodes. More are answered 503 at once."""
    insecure: bool = False
    """Allow a listener that others can reach, although nothing here encrypts or asks who calls."""
    log_level: str = one_of("info", "debug", "info", "warning", "error")
    """How much the edge's Envoy logs."""


@dataclass(frozen=True, slots=True)
class EdgeProcessSettings:
    """What ``tensorgate edge`` reads."""

    edge: EdgeSettings = field(default_factory=EdgeSettings)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What ``tensorgate serve`` starts."""

    nodes: int = bounded(1, 1, 64)
    """Nodes on this machine. Each loads every model, has queues and a cache of its own, and takes the next ports after those of the first:
    gRPC and metrics."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What ``tensorgate serve`` reads for itself; the children read theirs from the same environment."""

    serve: ServeSettings = field(default_factory=ServeSettings)
    edge: EdgeSettings = field(default_factory=EdgeSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)


@dataclass(frozen=True, slots=True)
class KeysSettings:
    """What ``tensorgate keys`` reads."""

    auth: AuthSettings = field(default_factory=AuthSettings)


@dataclass(frozen=True, slots=True)
class UsageReaderSettings:
    """What ``tensorgate usage`` reads: the node's."""

    usage: UsageSettings = field(default_factory=UsageSettings)


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""How a caller on this machine may name it in a URL."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on ``host``."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listed(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated setting."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
