"""What is known of a plan, in a JSON file beside it: ``model.plan`` has ``model.plan.json``.

A plan cannot be read back without the GPU it was built for: not its inputs, not its profiles, not its target. So the builder writes down
what it knew. The file and the plan belong together by the plan's SHA-256; a plan is not the same bytes when it is built again from the
same model, so the model has a SHA-256 of its own here.

Keys of a newer writer are ignored as long as ``schema`` is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from core_grpc.backends.tensorrt.json_table import JsonError, JsonTable

SCHEMA = 1
"""Rises when a reader of the older form would understand something wrong."""

_LARGEST_FILE_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20


class PlanMetadataError(Exception):
    """The metadata file is missing or wrong; the message is one line that names the file (never its directory) and the field."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output as the builder saw it."""

    name: str
    datatype: str
    """TensorRT's name of it: ``FLOAT``, ``HALF``, ``BF16``, ``INT64``, …"""
    onnx_datatype: str
    """The ONNX file's: ``FLOAT``, ``DOUBLE``, … Another than ``datatype`` where the parser takes another (DOUBLE becomes FLOAT)."""
    shape: tuple[int, ...]
    """-1 for what varies."""
    dimension_names: tuple[str, ...] = ()
    """The ONNX file's, one for each dimension, "" where it has none."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """What one input may have in one optimization profile; the engine is tuned for ``opt``."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


Profile: TypeAlias = Mapping[str, ShapeRange]
"""An optimization profile: by input."""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """The ONNX file that a plan was built from."""

    file: str
    """Its name, without directory."""
    sha256: str
    """Of the file the user named, without external data."""
    size_bytes: int
    """Of the file and its external data."""
    opset: int
    """Of the default domain."""
    external_sha256: Mapping[str, str] = field(default_factory=dict)
    """Of each file of external data, by its place beside the model."""
    converted_sha256: str = ""
    """Of the file the parser got, where a precision was converted first."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What the gate decided about the precision of this plan, on the user's own data."""

    metric: str
    """``top1``, ``cosine``, ``max-abs``, or the user's function."""
    drift: float
    """How far it is from the reference, in the metric's unit; 0 is equal."""
    max_drift: float
    """The limit."""
    is_promoted: bool
    samples: int
    """Rows of data it was judged on."""
    reference: str
    """What it was compared with and where both ran, such as ``FP32 by ONNX Runtime 1.32 on CPU``."""
    reason: str = ""
    """One line for people."""
    kept_layers: tuple[str, ...] = ()
    """Nodes that stay in a higher precision, by the ONNX file's names."""


@dataclass(frozen=True, slots=True)
class PlanMetadata:
    """Everything that is known of a plan."""

    source: SourceInfo
    flavour: str
    """``tensorrt`` or ``tensorrt_rtx``: the library that built it, and the only one that can run it (the lean runtime runs
    version-compatible plans of ``tensorrt``)."""
    flavour_version: str
    """The whole version: a plan is for this release unless it is version compatible."""
    tensorgate_version: str
    created: str
    """UTC, ISO 8601."""
    targets: tuple[str, ...]
    """Compute capabilities, ``8.9``; empty where the flavour chose (RTX: any it supports) or compatibility levels say it."""
    device: str
    """The GPU that it was built on; "" ahead of time."""
    precision: str
    """``fp32``, ``fp16``, ``bf16``, ``int8``, ``fp8`` or a list joined by ``+``, as the network that was built has it."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[Profile, ...]
    """Empty where all shapes are fixed."""
    plan_sha256: str
    plan_bytes: int
    options: Mapping[str, str | int | float | bool]
    """How it was built: ``workspace_bytes``, ``optimization_level``, ``version_compatible``, ``hardware_compatibility``, ``refit``,
    ``strip_weights``, ``plugins``."""
    build_s: float
    peak_host_bytes: int
    """The builder process's largest resident size."""
    activation_bytes: int | None
    """Device memory of one execution context at the largest shapes, as the builder logged it; None where it did not."""
    weights_bytes: int | None
    """Device memory of the weights, as the builder logged it."""
    layers: int
    """Of the network before fusion."""
    layer_kinds: Mapping[str, int] = field(default_factory=dict)
    """Of the same network: how many of each of TensorRT's kinds (``CONVOLUTION``, …), most first."""
    engine_layers: int | None = None
    """Of the engine, after fusion; None where no GPU could read the plan when it was built."""
    fused_layers: tuple[str, ...] = ()
    """The names of those that were several in the network, as TensorRT's inspector gives them."""
    accuracy: Accuracy | None = None
    warnings: tuple[str, ...] = ()
    """What the builder told the user."""
    schema: int = field(default=SCHEMA)


def metadata_path(plan: Path) -> Path:
    """The metadata file of a plan: beside it, with ``.json`` behind its name."""
    return plan.with_name(plan.name + ".json")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_plan(plan: Path, content: bytes, metadata: PlanMetadata) -> None:
    """Writes a plan and its metadata, each under a temporary name that is then renamed; the plan last, so that who finds it finds both.

    Raises:
        OSError: the directory cannot be written; a plan that was there before is still there, and no part of the new one.
    """
    temporary = plan.with_name(f".{plan.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        write_metadata(plan, metadata)
        temporary.replace(plan)
    finally:
        temporary.unlink(missing_ok=True)


def write_metadata(plan: Path, metadata: PlanMetadata) -> None:
    """Writes or replaces the metadata file of a plan, in one step.

    Raises:
        OSError: the directory cannot be written; nothing is left behind.
    """
    path = metadata_path(plan)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(json.dumps(as_json(metadata), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def as_json(metadata: PlanMetadata) -> dict[str, Any]:
    """The metadata as JSON's values, ``schema`` first."""
    table = dataclasses.asdict(metadata)
    return {"schema": table.pop("schema"), **table}


def read_metadata(plan: Path) -> PlanMetadata:
    """Reads the metadata file of a plan.

    Raises:
        PlanMetadataError: there is none, or it is not what it should be.
    """
    path = metadata_path(plan)
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise PlanMetadataError(f"{path.name}: wanted at most {_LARGEST_FILE_BYTES} bytes, got {path.stat().st_size}")
        table = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise PlanMetadataError(f"{path.name} is missing beside {plan.name}: `tensorgate build` writes it") from None
    except OSError as error:
        raise PlanMetadataError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise PlanMetadataError(f"{path.name}: wanted JSON, got something else") from None
    try:
        return _metadata(JsonTable(path.name, table))
    except JsonError as error:
        raise PlanMetadataError(str(error)) from None


def mismatches(plan: Path, metadata: PlanMetadata) -> tuple[str, ...]:
    """Why the metadata is not that of this plan, each as one line; empty where it is. Reads the whole plan.

    Raises:
        OSError: the plan cannot be read.
    """
    size = plan.stat().st_size
    if size != metadata.plan_bytes:
        return (f"{plan.name} has {size} bytes, its metadata say {metadata.plan_bytes}",)
    digest = sha256_of(plan)
    if digest != metadata.plan_sha256:
        return (f"{plan.name} has the SHA-256 {digest[:12]}…, its metadata say {metadata.plan_sha256[:12]}…",)
    return ()


def _metadata(table: JsonTable) -> PlanMetadata:
    schema = table.number("schema")
    if schema != SCHEMA:
        raise PlanMetadataError(f"{table.where}: schema: wanted {SCHEMA}, got {schema}: another version of tensorgate wrote it")
    return PlanMetadata(
        source=_source(table.table("source")),
        flavour=table.text("flavour"),
        flavour_version=table.text("flavour_version"),
        tensorgate_version=table.text("tensorgate_version"),
        created=table.text("created"),
        targets=table.texts("targets"),
        device=table.text("device"),
        precision=table.text("precision"),
        inputs=tuple(_tensor(item) for item in table.tables("inputs")),
        outputs=tuple(_tensor(item) for item in table.tables("outputs")),
        profiles=tuple(_profile(item) for item in table.tables("profiles")),
        plan_sha256=table.text("plan_sha256"),
        plan_bytes=table.number("plan_bytes"),
        options=dict(table.table("options").items()),
        build_s=table.real("build_s"),
        peak_host_bytes=table.number("peak_host_bytes"),
        activation_bytes=table.number("activation_bytes") if table.has("activation_bytes") else None,
        weights_bytes=table.number("weights_bytes") if table.has("weights_bytes") else None,
        layers=table.number("layers"),
        layer_kinds=table.counts("layer_kinds"),
        engine_layers=table.number("engine_layers") if table.has("engine_layers") else None,
        fused_layers=table.texts("fused_layers"),
        accuracy=_accuracy(table.table("accuracy")) if table.has("accuracy") else None,
        warnings=table.texts("warnings"),
    )


def _source(table: JsonTable) -> SourceInfo:
    return SourceInfo(
        table.text("file"),
        table.text("sha256"),
        table.number("size_bytes"),
        table.number("opset"),
        table.named_texts("external_sha256"),
        table.text("converted_sha256", ""),
    )


def _tensor(table: JsonTable) -> TensorInfo:
    return TensorInfo(
        table.text("name"), table.text("datatype"), table.text("onnx_datatype"), table.sizes("shape"), table.texts("dimension_names")
    )


def _profile(table: JsonTable) -> Profile:
    ranges = {name: table.table(name) for name, _ in table.items()}
    return {name: ShapeRange(item.sizes("min"), item.sizes("opt"), item.sizes("max")) for name, item in ranges.items()}


def _accuracy(table: JsonTable) -> Accuracy:
    return Accuracy(
        metric=table.text("metric"),
        drift=table.real("drift"),
        max_drift=table.real("max_drift"),
        is_promoted=table.flag("is_promoted"),
        samples=table.number("samples"),
        reference=table.text("reference"),
        reason=table.text("reason", ""),
        kept_layers=table.texts("kept_layers"),
    )


__all__ = [
    "SCHEMA",
    "Accuracy",
    "PlanMetadata",
    "PlanMetadataError",
    "Profile",
    "ShapeRange",
    "SourceInfo",
    "TensorInfo",
    "as_json",
    "metadata_path",
    "mismatches",
    "read_metadata",
    "sha256_of",
    "write_metadata",
    "write_plan",
]
