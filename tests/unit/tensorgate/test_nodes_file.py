"""The file by which a running edge is told its nodes. That Envoy follows it is tested in tests/integration/test_many_nodes.py."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core_grpc.settings import SettingsError
from tensorgate.cli import main
from tensorgate.nodes_file import add_nodes, list_nodes, remove_nodes

ENDPOINTS = ["10.0.0.1:50051", "[::1]:50052", "unix:/run/node.sock"]


def test_added_listed_removed(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    assert list_nodes(path) == []
    assert add_nodes(path, ENDPOINTS) == ENDPOINTS
    assert add_nodes(path, ENDPOINTS[:1]) == ENDPOINTS
    assert remove_nodes(path, ENDPOINTS[1:]) == ENDPOINTS[:1]
    assert [item.name for item in tmp_path.iterdir()] == ["nodes.json"]


def test_what_others_wrote_into_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    add_nodes(path, ENDPOINTS[:1])
    content = json.loads(path.read_text())
    content["resources"][0]["endpoints"][0]["locality"] = {"zone": "a"}
    path.write_text(json.dumps(content))
    add_nodes(path, ENDPOINTS[1:2])
    assert json.loads(path.read_text())["resources"][0]["endpoints"][0]["locality"] == {"zone": "a"}


def test_two_who_edit_do_not_lose_each_others_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    endpoints = [f"10.0.0.{number}:1" for number in range(1, 41)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda endpoint: add_nodes(path, [endpoint]), endpoints))
    assert set(list_nodes(path)) == set(endpoints)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"resources": [{"cluster_name": "others", "endpoints": [{}]}]}', '{"resources": [3]}']
)
def test_another_file_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match="is no file of nodes"):
        add_nodes(path, ENDPOINTS)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["add", "FILE", "node-1:50051"], "got the name 'node-1:50051'"),
        (["add", "FILE", "50051"], "wanted unix:/path or host:port, got '50051'"),
        (["remove", "FILE", "10.0.0.9:1"], "has no node 10.0.0.9:1"),
        (["add", "none/FILE", "10.0.0.9:1"], "No such file or directory"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [item.replace("FILE", str(tmp_path / "nodes.json")) if item == "FILE" else item for item in arguments]
    assert main(["nodes", *[str(tmp_path / item) if item.startswith("none/") else item for item in given]]) == 2
    line = capsys.readouterr().err
    assert text in line
    assert line.count("\n") == 1


def test_the_command_prints_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "add", str(tmp_path / "nodes.json"), *ENDPOINTS]) == 0
    assert main(["nodes", "list", str(tmp_path / "nodes.json")]) == 0
    assert capsys.readouterr().out.splitlines() == ENDPOINTS * 2
