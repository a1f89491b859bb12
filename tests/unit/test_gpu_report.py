"""What the GPU report computes from what it measured; what it measures needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bench.gpu import onnx_models
from bench.gpu.timed_driver import Span, covered_ms, overlap_ms
from core_grpc.backends.gpus import visible_gpus

ROOT = Path(__file__).resolve().parents[2]


def spans(kind: str, *times: tuple[float, float]) -> list[Span]:
    return [Span(kind, 1, began, ended) for began, ended in times]


@pytest.mark.parametrize(
    ("times", "expected"),
    [((), 0), (((0, 2),), 2), (((0, 2), (1, 3)), 3), (((5, 6), (0, 1)), 2), (((0, 10), (2, 3), (4, 5)), 10), (((0, 1), (1, 2)), 2)],
)
def test_time_that_is_covered_counts_once(times: tuple[tuple[float, float], ...], expected: float) -> None:
    assert covered_ms(spans("execute", *times)) == expected


@pytest.mark.parametrize(
    ("copies", "executions", "expected"),
    [(((0, 1),), ((1, 4),), 0), (((2, 3),), ((1, 4),), 1), (((0, 2), (3, 5)), ((1, 4),), 2), (((0, 9),), ((1, 2), (4, 5)), 2)],
)
def test_copies_under_executions(
    copies: tuple[tuple[float, float], ...], executions: tuple[tuple[float, float], ...], expected: float
) -> None:
    assert overlap_ms(spans("copy in", *copies), spans("execute", *executions)) == expected


def test_the_model_tells_images_apart_in_half_precision() -> None:
    """Or the report's comparison of 64 callers would see nothing."""
    images = np.random.default_rng(3).integers(0, 256, (3, *onnx_models.IMAGE), np.uint8)
    answers = []
    for dtype in (np.float32, np.float16):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(onnx_models.resnet50(dtype).SerializeToString(), options, providers=["CPUExecutionProvider"])
        answers.append(session.run(None, {"image": images})[0])
    single, half = answers
    between = min(np.abs(single[one] - single[other]).max() for one in range(3) for other in range(one))
    assert between > 10 * np.abs(single - half).max()


@pytest.mark.skipif(visible_gpus() > 0, reason="the report would run here")
def test_without_a_gpu_the_report_says_so_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu_report", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.strip() == "this machine has no NVIDIA GPU: nothing of this report can run here"
    assert not (tmp_path / "out").exists()
