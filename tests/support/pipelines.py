"""Pipelines for tests: the model.toml that joins models of a repository."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from core_grpc.pipelines.step import Step

Tensors = Mapping[str, tuple[str, Sequence[int]] | None]
"""Datatype and whole shape by name; None leaves them to the steps."""


def write_pipeline(repository: Path, name: str, steps: Sequence[Step], *, inputs: Tensors, outputs: Tensors, config: str = "") -> Path:
    """``<repository>/<name>/model.toml`` and an empty version 1; returns the file. ``config`` comes before the tables."""
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    tables = ['backend = "pipeline"', config]
    tables += [_table("input", *item) for item in inputs.items()] + [_table("output", *item) for item in outputs.items()]
    file = repository / name / "model.toml"
    file.write_text("\n".join([*tables, *map(_step, steps)]), encoding="utf-8")
    return file


def _table(role: str, name: str, declared: tuple[str, Sequence[int]] | None) -> str:
    lines = [] if declared is None else [f'datatype = "{declared[0]}"', f"shape = {list(declared[1])}"]
    return "\n".join([f"[{role}.{name}]", *lines])


def _step(step: Step) -> str:
    lines = ["[[step]]", f"model = {json.dumps(step.model)}", f"version = {step.version}" if step.version else ""]
    return "\n".join([*lines, f"inputs = {_inline(step.inputs)}", f"outputs = {_inline(step.outputs)}"])


def _inline(tensors: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in tensors.items()) + " }"
