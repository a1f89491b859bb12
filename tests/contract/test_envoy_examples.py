"""The examples beside the templates are what the templates give now, and Envoy accepts the edge's."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from core_grpc.transports.envoy_host import validate_config

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES: dict[str, str] = runpy.run_path(str(ROOT / "envoy" / "render_examples.py"))["examples"]()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_fresh(name: str) -> None:
    assert (ROOT / "envoy" / name).read_text() == EXAMPLES[name], "run python envoy/render_examples.py"


def test_envoy_accepts_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    # The example names the descriptor set relative to the repository.
    monkeypatch.chdir(ROOT)
    validate_config(ROOT / "envoy" / "edge.example.yaml")
