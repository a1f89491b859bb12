"""A step of a pipeline: a model, and which of the pipeline's tensors its inputs and outputs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core_grpc.errors import quoted

PIPELINE = "pipeline"
"""What ``backend`` says of a pipeline."""
PLATFORM = "ensemble"
"""Triton's word for it."""


@dataclass(frozen=True, slots=True)
class Step:
    """``[[step]]`` of model.toml, or ``ensemble_scheduling.step`` of config.pbtxt."""

    model: str
    version: str = ""
    """Digits; empty for the newest that is ready, at each request."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The model's input to the pipeline's tensor that it takes. Several may take the same one."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """The model's output to the pipeline's tensor that it becomes. Outputs that are not named are dropped."""


def titled(position: int, step: Step) -> str:
    """The step as errors name it; ``position`` counts from 0."""
    return f"step {position + 1} (model {quoted(step.model)})"
