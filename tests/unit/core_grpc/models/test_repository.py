"""What the scan finds, and that nothing in a repository can make it crash or leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.repository import file_in_model, scan_repository
from core_grpc.settings import SettingsError


def add(repository: Path, name: str, *versions: str, config: str = "", file: str = "model.onnx") -> Path:
    for version in versions:
        (repository / name / version).mkdir(parents=True)
        if file:
            (repository / name / version / file).write_bytes(b"x")
    (repository / name).mkdir(exist_ok=True)
    if config:
        (repository / name / "model.toml").write_text(config, encoding="utf-8")
    return repository / name


def found(repository: Path) -> list[tuple[str, str, str]]:
    return [(entry.name, entry.version, entry.reason) for entry in scan_repository(repository)]


def test_newest_version_by_number_is_served(tmp_path: Path) -> None:
    add(tmp_path, "m", "1", "9", "10", "latest", "01", "-1", "1.5")
    (entry,) = scan_repository(tmp_path)
    assert (entry.name, entry.version, entry.backend, entry.reason) == ("m", "10", "onnxruntime", "")
    assert entry.directory == (tmp_path / "m" / "10").resolve()


@pytest.mark.parametrize(
    ("versions", "served"),
    [
        ('"all"', ["1", "2", "10"]),
        ("[10, 1]", ["1", "10"]),
        ('"latest"', ["10"]),
        ("{ latest = 2 }", ["2", "10"]),
        ("{ latest = 9 }", ["1", "2", "10"]),
    ],
)
def test_versions_that_model_toml_asks_for(tmp_path: Path, versions: str, served: list[str]) -> None:
    add(tmp_path, "m", "1", "2", "10", config=f"versions = {versions}")
    assert found(tmp_path) == [("m", version, "") for version in served]


def test_version_that_is_not_there(tmp_path: Path) -> None:
    add(tmp_path, "m", "1", config="versions = [1, 7]")
    assert found(tmp_path) == [("m", "", "model.toml versions: wanted versions that exist (1), got 7")]


def test_hidden_entries_and_files_are_left_alone(tmp_path: Path) -> None:
    add(tmp_path, ".git", "1")
    (tmp_path / "README.md").write_text("hello", encoding="utf-8")
    assert found(tmp_path) == []


@pytest.mark.parametrize("name", ["a b", "model..", "...x"[3:], "ü", "50%", "a+b"])
def test_ordinary_odd_names_are_served(tmp_path: Path, name: str) -> None:
    add(tmp_path, name, "1")
    assert found(tmp_path) == [(name, "1", "")]


@pytest.mark.parametrize("name", [" a", "a ", "a\\..\\b", "a\nb", "x" * 201])
def test_unsafe_names_are_refused(tmp_path: Path, name: str) -> None:
    add(tmp_path, name, "1")
    ((_, version, reason),) = found(tmp_path)
    assert version == ""
    assert "name cannot be a model's" in reason


def test_reasons_instead_of_crashes(tmp_path: Path) -> None:
    add(tmp_path, "nofile", "1", file="")
    add(tmp_path, "noversion")
    add(tmp_path, "badconfig", "1", config="nope = 1")
    add(tmp_path, "otherbackend", "1", config='backend = "identity"\n[onnxruntime]\nintra_op_threads = 1')
    reasons = {name: reason for name, _, reason in found(tmp_path)}
    assert reasons["nofile"].startswith("no model file: wanted model.onnx or model.py in the version directory")
    assert reasons["noversion"].startswith("no version directory")
    assert reasons["badconfig"].startswith("model.toml nope: no such key")
    assert reasons["otherbackend"] == "model.toml: [onnxruntime] is for another backend; this model's is identity"


def test_symbolic_links_that_leave_the_repository_are_refused(tmp_path: Path) -> None:
    outside = add(tmp_path / "outside", "m", "1")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model").symlink_to(outside)
    (add(repository, "version") / "1").symlink_to(outside / "1")
    (add(repository, "file", "1", file="") / "1" / "model.onnx").symlink_to(outside / "1" / "model.onnx")
    (add(repository, "config", "1") / "model.toml").symlink_to(outside / "model.toml")
    (repository / "dangling").symlink_to(tmp_path / "nowhere")
    (repository / "loop").symlink_to(repository / "loop")
    reasons = {name: reason for name, _, reason in found(repository)}
    for name in ("model", "version", "file", "config", "dangling"):
        assert "is a symbolic link that leaves the model repository" in reasons[name], name
    assert reasons["loop"]


def test_symbolic_links_inside_the_repository_are_followed(tmp_path: Path) -> None:
    """As Kubernetes mounts a volume: everything is a link into a hidden directory beside it."""
    add(tmp_path / "..data", "m", "1")
    repository = tmp_path / "link"
    repository.symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "m").symlink_to(Path("..data") / "m")
    assert ("m", "1", "") in found(repository)


def test_repository_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(SettingsError, match="TENSORGATE_MODELS_REPOSITORY: no such directory"):
        scan_repository(tmp_path / "missing")
    with pytest.raises(SettingsError, match="wanted a directory of models, got a file"):
        scan_repository(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_repository_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(SettingsError, match="Permission denied"):
        scan_repository(tmp_path / "closed")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_files_that_model_toml_names_stay_in_the_model(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelLoadFailed, match="outside the model's directory"):
        file_in_model(tmp_path, name)
