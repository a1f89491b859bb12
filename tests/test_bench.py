"""The benchmarks run and print what they promise; what the numbers are is not a test's business."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.programs import ROOT

SECTIONS = ("joining", "engine", "batching", "sequences", "overload", "fairness")
"""Of bench.scheduling; its others are benchmarks of their own here."""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["bench.start", "--rounds", "1"], ["ready after", "MB PSS"]),
        (["bench.streams", "--scale", "0.02"], ["ModelStreamInfer", "Converse", "Watch by gRPC-Web", "No answer was lost"]),
        (["bench.doors", "--rounds", "1", "--scale", "0.02"], ["gRPC in Envoy / grpc.aio", "v2 binary / gRPC", "node CPU", "v1 JSON"]),
        (["bench.response_cache", "--rounds", "20"], ["identity 64 B", "demo classifier", "hit / no cache"]),
        (["bench.python_backend", "--rounds", "20"], ["64 B", "600 KB", "of identity"]),
        (
            ["bench.scheduling", "--scale", "0.02", *(f"--only={name}" for name in SECTIONS)],
            ["fresh / kept", "scheduler / engine", "rows/s, 8 / 1", "Silero", "under overload / alone", "rows of the one / of the other"],
        ),
        (["bench.many_models", "--models", "20", "--requests", "200"], ["20 models ready", "of alone", "memory of each", "had to go"]),
        (["bench.reloads", "--reloads", "50"], ["failed requests", "growth in 100 reloads"]),
    ],
    ids=["start", "streams", "doors", "response_cache", "python_backend", "scheduling", "many_models", "reloads"],
)
def test_benchmarks_run(arguments: list[str], printed: list[str]) -> None:
    finished = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=220, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert [text for text in printed if text not in finished.stdout] == []
