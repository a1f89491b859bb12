"""The file beside a plan: what is written is read, and what is not right is named."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from core_grpc.backends.tensorrt.plan_metadata import (
    Accuracy,
    PlanMetadata,
    PlanMetadataError,
    ShapeRange,
    SourceInfo,
    TensorInfo,
    metadata_path,
    mismatches,
    read_metadata,
    sha256_of,
    write_metadata,
    write_plan,
)

CONTENT = b"vtrt" + bytes(60)


@pytest.fixture
def metadata(tmp_path: Path) -> PlanMetadata:
    (tmp_path / "content").write_bytes(CONTENT)
    return PlanMetadata(
        source=SourceInfo("model.onnx", "ab" * 32, 17, 18),
        flavour="tensorrt_rtx",
        flavour_version="1.7.1.116",
        tensorgate_version="0.1.0",
        created="2026-01-31T08:00:00+00:00",
        targets=("8.9", "12.0"),
        device="",
        precision="fp16",
        inputs=(TensorInfo("x", "FLOAT", "DOUBLE", (-1, 3), ("batch", "")),),
        outputs=(TensorInfo("y", "INT64", "INT64", (-1,), ("batch",)),),
        profiles=({"x": ShapeRange((1, 3), (4, 3), (8, 3))},),
        plan_sha256=sha256_of(tmp_path / "content"),
        plan_bytes=len(CONTENT),
        options={"workspace_bytes": 1 << 30, "refit": False},
        build_s=1.25,
        peak_host_bytes=300_000_000,
        activation_bytes=None,
        weights_bytes=5,
        layers=94,
        accuracy=Accuracy("cosine", 0.001, 0.01, is_promoted=True, samples=200, reference="FP32", kept_layers=("/conv1",)),
    )


def test_what_is_written_is_read(tmp_path: Path, metadata: PlanMetadata) -> None:
    plan = tmp_path / "model.plan"
    write_plan(plan, CONTENT, metadata)
    assert plan.read_bytes() == CONTENT
    assert metadata_path(plan).name == "model.plan.json"
    assert read_metadata(plan) == metadata
    assert mismatches(plan, metadata) == ()
    write_metadata(plan, dataclasses.replace(metadata, accuracy=None))
    assert read_metadata(plan).accuracy is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["content", "model.plan", "model.plan.json"]


@pytest.mark.parametrize(
    ("content", "wanted"), [(CONTENT + b"!", "has 65 bytes, its metadata say 64"), (b"vtrt" + bytes(59) + b"\1", "has the SHA-256")]
)
def test_another_plan_is_not_the_one_described(tmp_path: Path, metadata: PlanMetadata, content: bytes, wanted: str) -> None:
    plan = tmp_path / "model.plan"
    write_plan(plan, content, metadata)
    (text,) = mismatches(plan, metadata)
    assert wanted in text


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"schema": 2}, "schema: wanted 1, got 2"),
        ({"flavour": 5}, "flavour: wanted str, got int"),
        ({"targets": "8.9"}, "targets: wanted list, got str"),
        ({"inputs": [{}]}, r"inputs\[0\]: name is missing"),
        ({"profiles": [{"x": {"min": [1, True]}}]}, r"profiles\[0\]: x: min\[1\]: wanted int, got bool"),
        ({"source": None}, "source: wanted an object, got NoneType"),
        ({"build_s": "1"}, "build_s: wanted number, got str"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, metadata: PlanMetadata, change: dict[str, Any], wanted: str) -> None:
    plan = tmp_path / "model.plan"
    write_plan(plan, CONTENT, metadata)
    table = json.loads(metadata_path(plan).read_text())
    metadata_path(plan).write_text(json.dumps({**table, **change}))
    with pytest.raises(PlanMetadataError, match=wanted) as caught:
        read_metadata(plan)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(("content", "wanted"), [(None, "is missing beside model.plan"), ("{", "wanted JSON"), ("[]", "wanted an object")])
def test_a_file_that_is_none_is_told(tmp_path: Path, content: str | None, wanted: str) -> None:
    plan = tmp_path / "model.plan"
    if content is not None:
        metadata_path(plan).write_text(content)
    with pytest.raises(PlanMetadataError, match=wanted):
        read_metadata(plan)


def test_keys_of_a_newer_writer_are_ignored(tmp_path: Path, metadata: PlanMetadata) -> None:
    plan = tmp_path / "model.plan"
    write_plan(plan, CONTENT, metadata)
    table = json.loads(metadata_path(plan).read_text())
    metadata_path(plan).write_text(json.dumps({**table, "new": 1}))
    assert read_metadata(plan) == metadata


def test_nothing_is_left_where_the_plan_cannot_be_written(tmp_path: Path, metadata: PlanMetadata) -> None:
    (tmp_path / "model.plan").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_plan(tmp_path / "model.plan", CONTENT, metadata)
    assert not list(tmp_path.glob(".*.part"))
