"""The facade's settings. Each field has a default, its unit in its name, and an explanation under it.

A value comes from, last one wins: the default, the table ``[facade]`` of the TOML file named by ``TENSORGATE_CONFIG``, the environment
(``TENSORGATE_FACADE_<FIELD>``). An unknown name, a wrong type or a value out of range is refused with its name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "TENSORGATE_FACADE_"
_CONFIG = "TENSORGATE_CONFIG"
_CORE_LIMIT = "TENSORGATE_LIMITS_MAX_MESSAGE_BYTES"
_HERE = Path(__file__).resolve().parent


class SettingsError(ValueError):
    """A setting has an unknown name, a wrong type, or a value out of range."""


def _demo_directory() -> Path:
    """In an installed package the demo lies inside it; in a checkout, beside it."""
    installed = _HERE / "web_demo"
    return installed if installed.is_dir() else _HERE.parent / "web_demo" / "dist"


class FacadeSettings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on. 0 takes a free one."""
    unix_socket: str = ""
    """Path of a Unix socket to listen on instead of host and port. Empty for none."""
    core_address: str = Field("127.0.0.1:50051", min_length=1)
    """Where the core's gRPC is: `host:port`, or `unix:` with an absolute path."""
    demo_directory: Path = Field(default_factory=_demo_directory)
    """Directory of the page served at `/`. A missing one leaves a plain page there."""
    public_url: str = Field("", pattern=r"^(https?://[^\s/?#]+(/[^\s?#]*)?)?$")
    """The address at which users reach this server, as the documentation's commands show it. Its path, if it has one, is the prefix under
    which a proxy serves everything. Empty: `http://127.0.0.1:8080`, without a prefix."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged."""
    access_log: bool = False
    """Log a line for each request. Off because the edge has an access log."""
    request_timeout_s: float = Field(60.0, gt=0, le=86400)
    """How long one `/predict` may take, in seconds."""
    probe_timeout_s: float = Field(1.0, gt=0, le=60)
    """How long `/health` waits for the core, in seconds."""
    grace_s: int = Field(30, ge=0, le=3600)
    """How long accepted requests may take to finish when the facade stops, in seconds."""
    max_body_bytes: int = Field(64 << 20, ge=1024, le=(1 << 31) - 1)
    """The largest request body, and the largest message from or to the core. Where it is not set, `max_message_bytes` of the core's limits
    holds here too."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file; for want of those, the limit of messages that the core is given."""
        del dotenv_settings, file_secret_settings
        shared = InitSettingsSource(settings_cls, _core_limit(os.environ))
        return init_settings, env_settings, InitSettingsSource(settings_cls, _file_table(os.environ, "facade")), shared


def load_settings() -> FacadeSettings:
    """The settings from file and environment.

    Raises:
        SettingsError: see the module's text. One line for each problem.
    """
    known = FacadeSettings.model_fields
    for key in os.environ:
        if key.startswith(PREFIX) and key[len(PREFIX) :].lower() not in known:
            raise SettingsError(f"{key}: no such setting; facade has {', '.join(known)}")
    try:
        return FacadeSettings()
    except ValidationError as error:
        raise SettingsError("\n".join(_line(problem) for problem in error.errors())) from error


def _line(problem: Mapping[str, Any]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return f"[facade] {name}: no such setting; facade has {', '.join(FacadeSettings.model_fields)}"
    where = PREFIX + name.upper() if PREFIX + name.upper() in os.environ else f"[facade] {name}"
    return f"{where}: {problem['msg']}, got {problem['input']!r}"


def _core_limit(environ: Mapping[str, str]) -> dict[str, Any]:
    """The largest message, as the core is told it. A wrong value is the core's to refuse."""
    limit = environ.get(_CORE_LIMIT) or str(_file_table(environ, "limits").get("max_message_bytes", ""))
    return {"max_body_bytes": int(limit)} if limit.isdecimal() else {}


def _file_table(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    path = environ.get(_CONFIG, "")
    if not path:
        return {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8")).get(name, {})
    except OSError as error:
        raise SettingsError(f"{_CONFIG}: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{_CONFIG}: {path} is not TOML: {error}") from error
    if not isinstance(table, dict):
        raise SettingsError(f"[{name}]: wanted a table, got {table!r}")
    return table
