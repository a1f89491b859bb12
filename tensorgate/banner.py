"""What ``tensorgate serve`` prints when it is ready: where to look, and a line to paste."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorgate.ports import Door
from tensorgate.small_http import request

SAMPLE = Path(__file__).resolve().parent / "samples" / "coffee.jpg"


async def banner(edge: Door, nodes: Sequence[Sequence[Door]], took_s: float) -> str:
    """The text, after asking the edge which models there are. Each node has its gRPC door and perhaps one of metrics."""
    models = await _models(edge)
    url = edge.url()
    lines = [
        f"Tensorgate is ready after {took_s:.1f} s.",
        f"  demo page   {url}/",
        f"  docs        {url}/docs",
        f"  REST        {url}/v1/models and {url}/v2",
        *_node_lines(edge, nodes),
        *_model_lines(models),
        "Try it:",
        f"  {_try_it(models, url)}",
        "Ctrl-C finishes accepted work and stops; a second one stops at once.",
    ]
    return "\n".join(lines) + "\n"


def _node_lines(edge: Door, nodes: Sequence[Sequence[Door]]) -> list[str]:
    listeners = [doors[0].url("").removeprefix("://") for doors in nodes]
    public = edge.url("").removeprefix("://")
    if len(nodes) == 1:
        grpc = [f"  gRPC        {listeners[0]} (and, with gRPC-Web, {public})"]
    else:
        grpc = [f"  gRPC        {public}, with gRPC-Web, before {len(nodes)} nodes", f"  nodes       {', '.join(listeners)}"]
    return [*grpc, *(f"  metrics     {door.url()}/metrics" for _, *metrics in nodes for door in metrics)]


async def _models(edge: Door) -> list[dict[str, Any]]:
    answer = await request((edge.host, edge.port), "GET", "/v1/models")
    try:
        found: list[dict[str, Any]] = json.loads(answer.body)["models"] if answer.status == 200 else []
    except (ValueError, KeyError):
        found = []
    return found


def _model_lines(models: list[dict[str, Any]]) -> list[str]:
    if not models:
        return ["  models      none answers"]
    return [f"  model       {model['name']} version {model['version']}: {_state(model)}" for model in models]


def _state(model: dict[str, Any]) -> str:
    state = str(model["state"]).removeprefix("MODEL_STATE_").lower()
    return f"{state}: {model['reason']}" if model.get("reason") else state


def _try_it(models: list[dict[str, Any]], url: str) -> str:
    for model in models:
        takes_photo = any(spec.get("accepts") == "image" for spec in model.get("inputs", []))
        if takes_photo and model["state"] == "MODEL_STATE_READY":
            return f"curl -F image=@{shlex.quote(_sample())} {url}/v1/models/{model['name']}:predict"
    return f"curl {url}/v1/models"


def _sample() -> str:
    """The sample photograph as the user would name it: relative where it lies below the current directory."""
    here = Path.cwd()
    return os.path.relpath(SAMPLE, here) if SAMPLE.is_relative_to(here) else str(SAMPLE)
