"""Files of other people's that TensorRT-RTX parses and does not build, and what the command says of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from core_grpc.backends.tensorrt.plan_metadata import read_metadata
from tests.build_matrix import wheels
from tests.build_matrix.cases import in_wheel
from tests.build_matrix.samples import lines
from tests.support.programs import ROOT

SILERO_SHAPES = "input:1x576..8x576..64x576,state:2x1x128..2x8x128..2x64x128"


def build(model: Path, version: Path, shapes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorgate", "build", str(model), "-o", str(version), "--shapes", shapes]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_half.onnx"])
def test_sileros_own_file_has_an_if_inside_an_if(tmp_path: Path, name: str) -> None:
    model = in_wheel(wheels.SILERO, f"silero_vad/data/{name}")(tmp_path)
    done = build(model, tmp_path / "1", SILERO_SHAPES)
    assert done.returncode == 1
    assert "the parser took it, but TensorRT cannot build it" in done.stderr
    assert "→ an If inside an If cannot be built: export the model for one case, without the branch" in done.stderr
    assert not (tmp_path / "1").exists()


def test_sileros_file_without_nested_ifs_is_built(tmp_path: Path) -> None:
    model = in_wheel(wheels.SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx")(tmp_path)
    assert build(model, tmp_path / "1", SILERO_SHAPES).returncode == 0
    inputs = read_metadata(tmp_path / "1" / "model.plan").inputs
    assert {tensor.name: tensor.shape for tensor in inputs} == {"input": (-1, -1), "state": (2, -1, 128), "sr": ()}


class _Lines(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._feeds = iter([{"x": line[None]} for line in lines()["x"][:2]])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.mark.timeout(120)
def test_a_file_whose_every_operator_is_quantised_is_explained(tmp_path: Path) -> None:
    model = in_wheel(wheels.OCR, "rapidocr/models/PP-OCRv6_rec_small.onnx")(tmp_path)
    raised, prepared, quantised = (tmp_path / f"{name}.onnx" for name in ("raised", "prepared", "quantised"))
    onnx.save(version_converter.convert_version(onnx.load(model), 17), raised)
    quant_pre_process(raised, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        quantised,
        _Lines(),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True, "QuantizeBias": False},
    )
    done = build(quantised, tmp_path / "1", "x:1x3x48x32..8x3x48x320..16x3x48x2048")
    assert done.returncode == 1
    assert "→ quantise Conv, MatMul and Gemm only (ONNX Runtime: op_types_to_quantize)" in done.stderr
