"""docker-compose.yml: valid by the Compose specification's schema, and its commands run for real, outside containers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from importlib.resources import files
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from tests.integration.conftest import free_address
from tests.support.programs import ROOT, Program, wait_until

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
LISTENS = {"edge": ("TENSORGATE_EDGE_PORT", 8080), "node": ("TENSORGATE_SERVER_PORT", 50051), "facade": ("TENSORGATE_FACADE_PORT", 8000)}
"""The setting that moves a service's port, and the port that it has in its container."""


def test_the_file_follows_the_specification() -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


def test_the_schema_would_find_a_mistake() -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"edge": {"prots": []}}}, schema)


def test_the_three_parts_and_nothing_else() -> None:
    assert set(SERVICES) == set(LISTENS)
    assert {service["image"] for service in SERVICES.values()} == {"tensorgate:cpu"}
    for service in SERVICES.values():
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", [])) <= set(SERVICES)


def test_only_this_machine_reaches_a_published_port() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8080:8080", "127.0.0.1:50051:50051", "127.0.0.1:8002:8002"]


def test_what_is_insecure_is_said_aloud() -> None:
    assert all("--insecure" in service["command"] for service in SERVICES.values())
    assert re.search(r"^# --insecure: ", (ROOT / "docker-compose.yml").read_text(), re.MULTILINE)


def test_the_commands_make_a_gateway() -> None:
    ports = {name: free_address().port for name in LISTENS}
    settings = {LISTENS[name][0]: str(port) for name, port in ports.items()}

    def moved(text: str) -> str:
        """Host names and ports of the compose network as they are here."""
        for name, (_, port) in LISTENS.items():
            text = text.replace(f"{name}:{port}", f"127.0.0.1:{ports[name]}").replace(f"127.0.0.1:{port}", f"127.0.0.1:{ports[name]}")
        return text

    with ExitStack() as running:
        for name in ("node", "facade", "edge"):
            variable = LISTENS[name][0]
            arguments = [moved(argument) for argument in SERVICES[name]["command"]]
            program = running.enter_context(Program("tensorgate", *arguments, env={variable: settings[variable]}))
            program.wait_for({"node": "node listens on", "facade": "listening on", "edge": "edge listens on"}[name])
        url = f"http://localhost:{ports['edge']}"
        wait_until(lambda: httpx.get(f"{url}/v2/health/ready").status_code == 200, "the edge sees the node", 10)
        with (ROOT / "tensorgate" / "samples" / "coffee.jpg").open("rb") as photo:
            answer = httpx.post(f"{url}/v1/models/efficientnet_lite0:predict", files={"image": photo}, timeout=20)
        assert answer.json()["classes"][0][0]["label"] == "espresso"
        assert httpx.get(f"{url}/docs").status_code == 200
        assert httpx.get(f"{url}/v2", headers={"host": "evil.example"}).status_code == 421
        for service in SERVICES.values():
            if "healthcheck" in service:
                kind, _python, *arguments = [moved(part) for part in service["healthcheck"]["test"]]
                assert kind == "CMD"
                subprocess.run([sys.executable, *arguments], check=True, timeout=20)
