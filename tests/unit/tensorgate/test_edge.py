"""The edge's configuration as a function of its settings. What Envoy does with it is tested in tests/integration/test_edge.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from core_grpc.settings import AuthSettings, LimitsSettings, SettingsError
from core_grpc.transports.envoy_host import EnvoyConfigError
from tensorgate.clusters import cluster
from tensorgate.edge import edge_command, edge_config, local_replies
from tensorgate.nodes_file import add_nodes
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


SPREAD = [EdgeSettings(core="10.0.0.1:1,10.0.0.2:1"), EdgeSettings(core="nodes.example:1")]


def routes(settings: EdgeSettings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection_manager(rendered(EdgeProcessSettings(settings)))["route_config"]["virtual_hosts"][0]["routes"]
    return found


@pytest.mark.parametrize("settings", SPREAD)
def test_only_what_may_run_twice_is_tried_again(settings: EdgeSettings) -> None:
    retried = [route for route in routes(settings) if "retry_policy" in route.get("route", {})]
    assert [route["route"]["cluster"] for route in retried] == ["core"]
    # The core is told, so that it can refuse a sequence; and what is marked is what is retried.
    marked = [route for route in routes(settings) if "request_headers_to_add" in route]
    assert [header["header"]["key"] for route in marked for header in route["request_headers_to_add"]] == ["x-tensorgate-spread"]
    assert marked == retried


def test_one_node_is_asked_once() -> None:
    assert not [route for route in routes(EdgeSettings()) if "retry_policy" in route.get("route", {}) or "request_headers_to_add" in route]


def test_hedging_is_off_unless_asked_for() -> None:
    assert not [route for route in routes(SPREAD[0]) if "hedge_policy" in route.get("route", {})]
    hedged = [route for route in routes(replace(SPREAD[0], hedge_after_s=0.25)) if "hedge_policy" in route.get("route", {})]
    assert [route["route"]["retry_policy"]["per_try_timeout"] for route in hedged] == ["0.25s"]


@pytest.mark.parametrize("settings", SPREAD)
def test_management_is_for_one_node(settings: EdgeSettings) -> None:
    with pytest.raises(SettingsError, match=r"edge\.management: wanted false with several nodes"):
        edge_config(EdgeProcessSettings(replace(settings, management=True)), "/run/admin.sock")


def test_a_right_to_manage_does_not_reach_one_of_several_nodes(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text("{}")
    auth = AuthSettings(keys_file=str(keys))
    refused = {
        settings.core: "ask each node's own listener" in edge_config(EdgeProcessSettings(settings, auth=auth), "/run/admin.sock")
        for settings in (*SPREAD, EdgeSettings())
    }
    assert refused == {SPREAD[0].core: True, SPREAD[1].core: True, EdgeSettings().core: False}


def test_a_file_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    with pytest.raises(SettingsError, match="is not there: make it with `tensorgate nodes`"):
        edge_config(EdgeProcessSettings(EdgeSettings(nodes_file=str(path))), "/run/admin.sock")
    add_nodes(path, ["10.0.0.1:50051"])
    settings = EdgeSettings(nodes_file=str(path), private_socket="/run/nodes.sock", hedge_after_s=1)
    edge_command(EdgeProcessSettings(settings), tmp_path)
    clusters = rendered(EdgeProcessSettings(settings))["static_resources"]["clusters"]
    assert {item["type"] for item in clusters if item["name"].startswith("core")} == {"EDS"}
    with pytest.raises(SettingsError, match=r"ends with \.json"):
        edge_config(EdgeProcessSettings(EdgeSettings(nodes_file=str(tmp_path / "nodes"))), "/run/admin.sock")
