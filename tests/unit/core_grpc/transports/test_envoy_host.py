"""The Envoy that hosts a node: its configuration as Envoy sees it, with a stub application, because validating starts the application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from core_grpc.transports.envoy_host import (
    EnvoyConfigError,
    NodeListener,
    envoy_command,
    node_config,
    node_environment,
    shared_libpython,
    validate_config,
    why_not_envoy,
)

STUB_APPLICATION = """
async def app(scope, receive, send):
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
"""


def listener(directory: Path, port: int = 0) -> NodeListener:
    return NodeListener("127.0.0.1", port, str(directory / "admin.sock"), str(directory / "core.sock"))


def test_envoy_accepts_the_configuration_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "stub_application.py").write_text(STUB_APPLICATION)
    config = tmp_path / "node.yaml"
    config.write_text(node_config(listener(tmp_path), "stub_application:app"))
    env = node_environment({"PATH": os.environ["PATH"]})
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    command = envoy_command(config, concurrency=1, log_level="error")
    result = subprocess.run([*command, "--mode", "validate"], env=env, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 0, result.stderr
    assert "OK" in result.stdout


def test_one_listener_with_one_chain_that_ends_in_the_application(tmp_path: Path) -> None:
    config = yaml.safe_load(node_config(listener(tmp_path, 50051)))
    (door,) = config["static_resources"]["listeners"]
    (chain,) = door["filter_chains"]
    (manager,) = chain["filters"]
    (module,) = manager["typed_config"]["http_filters"]
    assert module["typed_config"]["terminal_filter"] is True
    assert json.loads(module["typed_config"]["filter_config"]["value"])["app"] == "core_grpc.transports.asgi_app:app"
    assert Path(module["typed_config"]["dynamic_module_config"]["module"]["local"]["filename"]).is_file()
    assert door["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 50051}
    assert door["additional_addresses"][0]["address"]["pipe"]["path"] == str(tmp_path / "core.sock")
    assert door["enable_reuse_port"] is False


def test_without_a_unix_socket_there_is_one_address(tmp_path: Path) -> None:
    config = yaml.safe_load(node_config(NodeListener("127.0.0.1", 0, str(tmp_path / "admin.sock"))))
    assert "additional_addresses" not in config["static_resources"]["listeners"][0]


def test_the_environment_embeds_this_interpreter() -> None:
    env = node_environment({"HOME": "/home/x", "LD_PRELOAD": "/lib/other.so"})
    library = shared_libpython()
    assert library is not None
    assert env["HOME"] == "/home/x"
    assert env["LD_PRELOAD"] == f"{library}:/lib/other.so"
    assert env["PYTHONHOME"] == f"{sys.prefix}{os.pathsep}{sys.exec_prefix}"
    paths = env["PYTHONPATH"].split(os.pathsep)
    assert len(paths) == len(set(paths))
    assert all(path.startswith("/") for path in paths)


def test_a_python_without_shared_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_grpc.transports.envoy_host.shared_libpython", lambda: None)
    assert why_not_envoy() == f"this Python ({sys.version.split()[0]}) was built without a shared libpython"
    with pytest.raises(EnvoyConfigError, match="built without a shared libpython"):
        node_environment({})


def test_here_a_node_can_be_hosted() -> None:
    assert why_not_envoy() == ""


def test_a_refused_configuration_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("static_resources: { listeners: [ { nmae: x } ] }")
    with pytest.raises(EnvoyConfigError, match=r"Envoy refuses the configuration: .*nmae") as caught:
        validate_config(config)
    assert "\n" not in str(caught.value)
