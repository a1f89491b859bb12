"""A node's settings: small frozen groups, each field with a default, its unit in its name, and an explanation under it.

A value comes from, last one wins: the default, the TOML file named by ``TENSORGATE_CONFIG`` (a table for each group), the environment
(``TENSORGATE_<GROUP>_<FIELD>``). Command-line flags are put into the environment by the program that has them. An unknown name, a wrong
type or a value out of range is refused with its name, what was wanted and what came. docs/settings.md is generated from this module.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

PREFIX = "TENSORGATE_"


class SettingsError(ValueError):
    """A setting has an unknown name, a wrong type, or a value out of range."""


def bounded(default: int | float, low: float, high: float) -> Any:
    """A numeric field with the range it is checked against."""
    return field(default=default, metadata={"range": (low, high)})


def one_of(default: str, *choices: str) -> Any:
    """A text field with the values it may have."""
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The node's doors and name."""

    name: str = "tensorgate"
    """The name that ServerMetadata answers. Some of Triton's own example scripts insist on `triton`."""
    transport: str = one_of("auto", "auto", "envoy", "grpcio")
    """What hosts the servicers: `envoy` (an Envoy that hosts Python), `grpcio` (grpc.aio), or `auto`: envoy where a shared
    libpython is found, else grpcio."""
    host: str = "127.0.0.1"
    """The address of the node's gRPC listener."""
    port: int = bounded(50051, 0, 65535)
    """The port of the node's gRPC listener. 0 takes a free one."""
    unix_socket: str = ""
    """Path of a private Unix socket to listen on as well: the edge's way in. Empty for none."""
    metrics: bool = True
    """Listen for `/metrics` (Prometheus) and `/health` on a port of their own."""
    metrics_host: str = "127.0.0.1"
    """The address of that listener. It tells whoever reaches it which models there are and how much they are used."""
    metrics_port: int = bounded(8002, 0, 65535)
    """Its port. 0 takes a free one."""
    log_level: str = one_of("info", "debug", "info", "warning", "error")
    """How much is logged."""
    reflection: bool = True
    """Offer gRPC server reflection on the node's own listener. Never offered to callers who come through the edge."""
    shared_memory: bool = False
    """Let callers on this machine register shared memory and leave tensors there. They then make the server read and write what they
    name in /dev/shm, so it is for callers who are trusted with that."""
    so_reuseport: bool = False
    """grpcio transport only: let several processes share the port."""
    trace_file: str = ""
    """Where traces are written (JSON), once trace settings ask for some. Empty: nothing is traced."""
    strict_readiness: bool = False
    """Ready only when every model of the repository is. Otherwise one model that answers is enough."""


@dataclass(frozen=True, slots=True)
class ModelsSettings:
    """The model repository and what models get when they say nothing."""

    repository: str = ""
    """Directory of the model repository: `<repository>/<model>/<version>/model.onnx`. Empty serves the demo model."""
    control: str = one_of("explicit", "explicit", "none", "poll")
    """How models come and go after the start: on request (`explicit`; through the edge it also takes the edge's setting `management`),
    never (`none`), or as the repository on disk changes (`poll`)."""
    load: str = "*"
    """Which models are loaded at start: `*` for all, or names with commas between, or empty for none; the others are loaded on request.
    Anything but `*` takes control `explicit`."""
    poll_interval_s: float = bounded(15.0, 0.05, 86400)
    """Control `poll`: how often the repository is looked at, in seconds, where the file system reports no changes (network file systems).
    Where it does, changes are seen at once."""
    poll_settle_s: float = bounded(1.0, 0, 3600)
    """Control `poll`: for how long a model's files must not have changed before they are loaded, in seconds, so that a copy is complete."""
    startup: str = one_of("all", "all", "on_demand")
    """Whether the models of `load` are loaded at start (`all`, as far as the budget of max_resident_models and max_resident_bytes goes), or
    each when the first request asks for it (`on_demand`; pinned models at start)."""
    load_threads: int = bounded(4, 1, 256)
    """How many models are loaded at the same time."""
    max_resident_models: int = bounded(0, 0, 1_000_000)
    """How many model versions are loaded at once. Beyond, the least recently used that have no work are unloaded, and come back when a
    request asks for them. 0: no limit."""
    max_resident_bytes: int = bounded(0, 0, 1 << 50)
    """As max_resident_models, in bytes of memory on each device, which are estimated from the models' files. 0: no limit."""
    pinned: str = ""
    """Models that stay loaded whatever the budget says: names with commas between, beside those with `pinned = true` in model.toml."""
    default_model: str = ""
    """The model that `inference.ModelService` and the facade's `/predict` run. Empty takes the only one there is."""
    default_max_batch_size: int = bounded(8, 1, 65536)
    """Rows in a batch, for models with a batch dimension that set no max_batch_size."""
    max_queue_rows: int = bounded(1024, 1, 10_000_000)
    """Rows that may wait for one model. More are refused at once with RESOURCE_EXHAUSTED."""
    max_queue_bytes: int = bounded(1 << 30, 1, 1 << 50)
    """Bytes of input that may wait for one model. More are refused at once with RESOURCE_EXHAUSTED."""
    response_cache_bytes: int = bounded(64 << 20, 0, 1 << 50)
    """Bytes of answers that are kept for the models that ask for it (`[response_cache]` in model.toml), all together. 0 turns it off."""
    intra_op_threads: int = bounded(0, 0, 1024)
    """Threads that one ONNX Runtime session uses for one operator. 0: one for each core, and one for a small model."""
    cpu_slots: int = bounded(0, 0, 65536)
    """Executions that run at once on the CPU, whatever their models; which model's is next is decided fairly. 0: the usable cores,
    divided by intra_op_threads where that is set, and at least one."""
    gpu_slots: int = bounded(0, 0, 65536)
    """Executions that run at once on each GPU, likewise. 0: two."""
    gpu_pool_bytes: int = bounded(0, 0, 1 << 50)
    """Memory that tensors on their way may take on each GPU, for all models together and beside their weights. A batch that finds no room
    is refused with RESOURCE_EXHAUSTED. 0: as much as the GPU has."""
    resources: str = ""
    """Totals of the resources that models share (`[instances] resources` in model.toml): `NAME:COUNT` for each device, or
    `NAME:COUNT:DEVICE` with `global`, `cpu`, or a GPU such as `gpu:0`; commas between them. A resource that is not named has the most
    that one instance needs."""


@dataclass(frozen=True, slots=True)
class LimitsSettings:
    """What one request may be. A limit that is hit answers with its name and value."""

    max_message_bytes: int = bounded(64 << 20, 1024, (1 << 31) - 1)
    """The largest message, either direction, on every door."""
    max_stream_requests: int = bounded(64, 1, 100_000)
    """Requests of one stream that are in work at once, with at most max_message_bytes of them together. The next one is read when one
    of them is answered."""
    max_tensor_dimensions: int = bounded(32, 1, 64)
    """The most dimensions of a tensor."""
    max_json_depth: int = bounded(64, 4, 1000)
    """The deepest nesting of a JSON body."""
    max_image_pixels: int = bounded(50_000_000, 1, 1 << 40)
    """The largest image that is decoded, width times height."""
    max_request_s: float = bounded(300.0, 0.01, 86400.0)
    """The longest a request without a deadline may take, in seconds."""


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """How a node stops."""

    notice_s: float = bounded(2.5, 0, 600)
    """How long a node that is going away still takes new work, while health already says NOT_SERVING, in seconds: an edge in front
    notices within two of its one-second checks. 0 where nothing is in front."""
    grace_s: float = bounded(30.0, 0, 3600)
    """How long accepted work may take to finish, in seconds."""


@dataclass(frozen=True, slots=True)
class ThreadsSettings:
    """Threads beside the event loop."""

    processing: int = bounded(2, 1, 256)
    """Threads that decode images and large JSON bodies."""
    gil_switch_interval_s: float = bounded(0.0005, 0.00001, 1.0)
    """How long a thread that waits for the interpreter lets another run, in seconds (sys.setswitchinterval)."""


@dataclass(frozen=True, slots=True)
class UsageSettings:
    """Metering of what each caller uses."""

    database: str = "auto"
    """The SQLite file that usage is kept in; several nodes of one machine may share it. `auto` is `usage.db` in the directory `tensorgate`
    of `$XDG_STATE_HOME` (`~/.local/state`), where that can be written; `off` meters nothing."""
    flush_s: float = bounded(5.0, 0.05, 3600)
    """How often it is written, in seconds: what a crash can lose. A drain writes the rest."""


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Who may call. Nothing is asked unless one of these is set; edge and nodes read the same values."""

    keys_file: str = ""
    """The file of API keys that `tensorgate keys` writes. Where it is set, callers must show a key; changes are seen within two seconds."""
    jwt_issuer: str = ""
    """The `iss` of tokens (JWT) that the edge takes beside keys. Needs jwt_audience and jwt_jwks_file."""
    jwt_audience: str = ""
    """The `aud` that such a token must have."""
    jwt_jwks_file: str = ""
    """The public keys of the issuer, a JSON Web Key Set. Read when the edge starts."""

    @property
    def is_on(self) -> bool:
        """Whether callers are asked who they are."""
        return bool(self.keys_file or self.jwt_issuer)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All groups of a node."""

    server: ServerSettings = field(default_factory=ServerSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    threads: ThreadsSettings = field(default_factory=ThreadsSettings)
    usage: UsageSettings = field(default_factory=UsageSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)


Settings = TypeVar("Settings")


def load_settings(kind: type[Settings], environ: Mapping[str, str] | None = None) -> Settings:
    """Reads a settings class whose fields are groups, from file and environment.

    Names in the file or environment that belong to no group of ``kind`` are left to other programs; an unknown field of a known
    group is refused.

    Raises:
        SettingsError: see the module's text.
    """
    environ = os.environ if environ is None else environ
    tables = _tables_from_file(environ.get(PREFIX + "CONFIG", ""))
    groups = {name: _load_group(name, group, tables.get(name, {}), environ) for name, group in get_type_hints(kind).items()}
    return kind(**groups)


def environment_from(settings: Any) -> dict[str, str]:
    """The environment that makes ``load_settings`` return ``settings``, with the defaults left out."""
    return {
        f"{PREFIX}{group.name}_{item.name}".upper(): _text(getattr(getattr(settings, group.name), item.name))
        for group in fields(settings)
        for item in fields(getattr(settings, group.name))
        if getattr(getattr(settings, group.name), item.name) != item.default
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tables_from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"TENSORGATE_CONFIG: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"TENSORGATE_CONFIG: {path} is not TOML: {error}") from error


def _load_group(name: str, group: type[Any], table: Any, environ: Mapping[str, str]) -> Any:
    if not isinstance(table, dict):
        raise SettingsError(f"[{name}]: wanted a table, got {table!r}")
    hints = get_type_hints(group)
    known = {item.name: item for item in fields(group)}
    values: dict[str, Any] = {}
    given = [(f"[{name}] {key}", key, value) for key, value in table.items()]
    start = f"{PREFIX}{name}_".upper()
    given += [(key, key[len(start) :].lower(), value) for key, value in environ.items() if key.startswith(start)]
    for where, key, value in given:
        if key not in known:
            raise SettingsError(f"{where}: no such setting; {name} has {', '.join(known)}")
        values[key] = _checked(where, hints[key], known[key].metadata, value)
    missing = [key for key, item in known.items() if item.default is MISSING and item.default_factory is MISSING and key not in values]
    if missing:
        raise SettingsError(f"{start}{missing[0].upper()}: required, not set")
    return group(**values)


def _checked(where: str, kind: type[Any], metadata: Mapping[str, Any], value: Any) -> Any:
    parsed = _parsed(where, kind, value)
    low, high = metadata.get("range", (None, None))
    if low is not None and not low <= parsed <= high:
        raise SettingsError(f"{where}: wanted {low} to {high}, got {parsed}")
    if "choices" in metadata and parsed not in metadata["choices"]:
        raise SettingsError(f"{where}: wanted one of {', '.join(metadata['choices'])}, got {parsed!r}")
    return parsed


_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _parsed(where: str, kind: type[Any], value: Any) -> Any:
    if kind is bool:
        if isinstance(value, bool) or str(value).lower() in _BOOLS:
            return value if isinstance(value, bool) else _BOOLS[str(value).lower()]
    elif kind in (int, float):
        try:
            if not isinstance(value, bool) and (isinstance(value, str) or kind is float or isinstance(value, int)):
                return kind(value)
        except (ValueError, TypeError, OverflowError):
            pass
    elif isinstance(value, str):
        return value
    raise SettingsError(f"{where}: wanted {kind.__name__}, got {value!r}")
