"""The edge's configuration as a function of its settings. What Envoy does with it is tested in tests/integration/test_edge.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from core_grpc.settings import LimitsSettings, SettingsError
from core_grpc.transports.envoy_host import EnvoyConfigError
from tensorgate.edge import cluster, edge_command, edge_config, local_replies
from tensorgate.settings import EdgeProcessSettings, EdgeSettings


def rendered(settings: EdgeProcessSettings) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(edge_config(settings, "/run/admin.sock"))
    return config


def connection_manager(config: dict[str, Any]) -> dict[str, Any]:
    manager: dict[str, Any] = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def host_domains(settings: EdgeSettings) -> list[list[str]]:
    hosts = connection_manager(rendered(EdgeProcessSettings(settings)))["route_config"]["virtual_hosts"]
    return [host["domains"] for host in hosts]


def test_envoy_accepts_the_defaults(tmp_path: Path) -> None:
    argv = edge_command(EdgeProcessSettings(), tmp_path)
    assert argv[argv.index("-c") + 1] == str(tmp_path / "edge.yaml")


@pytest.mark.parametrize(
    "settings",
    [
        EdgeSettings(core="unix:/run/core.sock", facade="unix:/run/facade.sock"),
        EdgeSettings(core="node-1:50051,node-2:50051", facade="facade:8000", host="0.0.0.0"),
        EdgeSettings(
            core="10.0.0.1:50051,[::1]:50051,unix:/run/x", hostnames="gw.example, *.gw.example", cors_origins="https://app.example"
        ),
        EdgeSettings(host="::1"),
    ],
)
def test_envoy_accepts(settings: EdgeSettings, tmp_path: Path) -> None:
    edge_command(EdgeProcessSettings(settings), tmp_path)


def test_a_refusal_by_envoy_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EnvoyConfigError) as caught:
        edge_command(EdgeProcessSettings(EdgeSettings(host="not an address")), tmp_path)
    assert str(caught.value).startswith("Envoy refuses the configuration: ")
    assert "\n" not in str(caught.value)


def test_values_cannot_break_out_of_their_place() -> None:
    nasty = "x', y: [\n- z\"]: #"
    config = rendered(EdgeProcessSettings(EdgeSettings(hostnames=nasty.replace(",", ""))))
    assert nasty.replace(",", "").strip() in host_domains(EdgeSettings(hostnames=nasty.replace(",", "")))[0]
    assert list(config) == ["admin", "layered_runtime", "overload_manager", "static_resources"]


def test_only_loopback_names_on_a_loopback_address() -> None:
    assert host_domains(EdgeSettings()) == [["localhost", "127.0.0.1", "[::1]"], ["*"]]
    assert host_domains(EdgeSettings(hostnames="gw.example"))[0] == ["localhost", "127.0.0.1", "[::1]", "gw.example"]


def test_any_name_elsewhere_unless_names_are_given() -> None:
    assert host_domains(EdgeSettings(host="0.0.0.0")) == [["*"]]
    assert host_domains(EdgeSettings(host="0.0.0.0", hostnames="gw.example"))[0] == ["localhost", "127.0.0.1", "[::1]", "gw.example"]


def test_limits_reach_every_place_that_holds_them() -> None:
    settings = replace(EdgeProcessSettings(), limits=LimitsSettings(max_message_bytes=123456, max_request_s=7.5))
    text = edge_config(settings, "/run/admin.sock")
    filters = {item["name"]: item["typed_config"] for item in connection_manager(rendered(settings))["http_filters"]}
    assert filters["envoy.filters.http.buffer"]["max_request_bytes"] == 123456
    assert filters["envoy.filters.http.grpc_json_transcoder"]["max_request_body_size"] == 123456
    assert filters["envoy.filters.http.grpc_json_transcoder"]["max_response_body_size"] == 123456
    assert "max_stream_duration: { max_stream_duration: 7.5s, grpc_timeout_header_max: 7.5s }" in text
    assert any("123456 bytes" in reply.message for reply in local_replies(123456, 7.5))


def test_filters_stand_in_the_order_that_works() -> None:
    names = [
        item["name"].removeprefix("envoy.filters.http.") for item in connection_manager(rendered(EdgeProcessSettings()))["http_filters"]
    ]
    assert names == ["cors", "grpc_web", "buffer", "header_mutation", "lua", "v1_errors", "lines_type", "grpc_json_transcoder", "router"]


def test_a_cluster_of_names_is_looked_up() -> None:
    assert cluster("core", ["node:50051"]).discovery == "STRICT_DNS"
    assert cluster("core", ["127.0.0.1:50051", "unix:/run/core.sock", "[::1]:1"]).discovery == "STATIC"


@pytest.mark.parametrize(
    ("endpoints", "got"),
    [
        ([], "nothing"),
        (["node"], "'node'"),
        (["node:0"], "'node:0'"),
        (["node:http"], "'node:http'"),
        (["unix:relative"], "'unix:relative'"),
    ],
)
def test_an_endpoint_that_is_none(endpoints: list[str], got: str) -> None:
    with pytest.raises(SettingsError, match=r"edge\.core: wanted unix:/path or host:port, got " + got):
        cluster("core", endpoints)


def test_names_and_sockets_do_not_mix() -> None:
    with pytest.raises(SettingsError, match="cannot be mixed"):
        cluster("core", ["node:50051", "unix:/run/core.sock"])
