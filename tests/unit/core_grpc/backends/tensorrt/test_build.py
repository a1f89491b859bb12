"""Builds by TensorRT-RTX itself, ahead of time: this machine needs no GPU for them. No plan is executed here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from core_grpc.backends.tensorrt.bindings import TENSORRT, Bindings, load_bindings
from core_grpc.backends.tensorrt.build.builder import build_plan
from core_grpc.backends.tensorrt.build.failures import BuildCancelled, BuildRefused
from core_grpc.backends.tensorrt.build.options import BuildRequest, check_request, parse_size
from core_grpc.backends.tensorrt.build.progress import SilentObserver
from core_grpc.backends.tensorrt.machine import Machine
from core_grpc.backends.tensorrt.plan_metadata import metadata_path, mismatches, read_metadata
from core_grpc.precision.conversion import Precision, convert

ROOT = Path(__file__).parents[5]
DIGITS = ROOT / "tests" / "data" / "precision" / "digits_cnn.onnx"
SPLIT = ROOT / "tests" / "data" / "precision" / "digits_split0.npz"
TARGETS = ("8.0", "8.6", "8.9", "12.0")
NO_GPU = Machine(0)


def tensorgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorgate", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )


def built(model: Path, plan: Path, **options: object) -> SilentObserver:
    observer = SilentObserver()
    request = BuildRequest(model, plan, **options)  # type: ignore[arg-type]
    build_plan(load_bindings("tensorrt_rtx"), request, NO_GPU, observer)
    return observer


def refusal(model: Path, directory: Path, **options: object) -> BuildRefused:
    with pytest.raises(BuildRefused) as refused:
        built(model, directory / "out" / "model.plan", **options)
    assert not (directory / "out").exists()
    return refused.value


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.npz"
    np.savez(path, image=np.load(SPLIT)["Xtr"][:64].reshape(-1, 1, 8, 8))
    return path


@pytest.mark.parametrize(("precision", "layers"), [("fp32", 14), ("fp16", 16), ("int8", 60)])
def test_a_model_is_built_for_four_gpus_in_each_precision(tmp_path: Path, calibration: Path, precision: str, layers: int) -> None:
    version = tmp_path / "repository" / "digits" / "1"
    data = ["--data", str(calibration)] if precision == "int8" else []
    done = tensorgate("build", str(DIGITS), "-o", str(version), "--target", ",".join(TARGETS), "--precision", precision, *data)
    assert done.returncode == 0, done.stderr
    assert "suggested: --shapes image:1x1x8x8..4x1x8x8..8x1x8x8" in done.stderr
    assert "for         compute capability 8.0, 8.6, 8.9, 12.0" in done.stdout
    plan = version / "model.plan"
    metadata = read_metadata(plan)
    assert not mismatches(plan, metadata)
    assert plan.read_bytes()[:4] == b"vtrt"
    assert (metadata.precision, metadata.targets, metadata.flavour) == (precision, TARGETS, "tensorrt_rtx")
    assert metadata.layers >= layers
    assert f"layers      {metadata.layers} before fusion: " in done.stdout
    assert "3 convolution" in done.stdout
    assert "options     workspace 1 GiB, optimization level 3" in done.stdout
    assert metadata.weights_bytes
    assert metadata.source.file == "digits_cnn.onnx"
    assert bool(metadata.source.converted_sha256) is (precision != "fp32")
    assert (version.parent / "model.toml").read_text().endswith("max_batch_size = 8  # as the plan's profiles allow\n")
    assert sorted(path.name for path in version.iterdir()) == ["model.plan", "model.plan.json"]


def test_inspect_shows_what_build_wrote(tmp_path: Path) -> None:
    built(DIGITS, tmp_path / "model.plan", targets=("8.9",))
    shown = tensorgate("inspect", str(tmp_path))
    assert shown.returncode == 0
    assert "for         compute capability 8.9" in shown.stdout
    assert json.loads(tensorgate("inspect", str(tmp_path), "--json").stdout)["targets"] == ["8.9"]
    plan = tmp_path / "model.plan"
    plan.write_bytes(plan.read_bytes()[:-1])
    changed = tensorgate("inspect", str(plan))
    assert changed.returncode == 1
    assert "these are not the metadata of this plan: model.plan has" in changed.stderr
    metadata_path(plan).unlink()
    assert "model.plan.json is missing beside model.plan" in tensorgate("inspect", str(plan)).stderr
    assert "there is no such file" in tensorgate("inspect", str(tmp_path / "no.plan")).stderr
    above = tensorgate("inspect", str(tmp_path.parent))
    assert f"there is no such file; there is {tmp_path}/model.plan" in above.stderr


def test_a_terminal_without_arrows_gets_question_marks_and_json_as_it_is(tmp_path: Path) -> None:
    built(DIGITS, tmp_path / "é" / "model.plan", targets=("8.9",))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "tensorgate", "inspect", str(tmp_path / "é")]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=True)
    assert "SHA-256 1f4e270da4e9?" in shown.stdout
    metadata = subprocess.run([*command, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=True)
    assert json.loads(metadata.stdout)["targets"] == ["8.9"]


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("model.onnx", b"\x08\x0a", "model.onnx: wanted a TensorRT plan, got an ONNX file"),
        ("model.plan", b"", "model.plan: wanted a TensorRT plan, got an empty file"),
        ("model.plan", b"version https://git-lfs.github.com/spec/v1\n", "got a Git LFS pointer"),
    ],
)
def test_inspect_tells_what_a_file_is_that_is_no_plan(tmp_path: Path, name: str, content: bytes, wanted: str) -> None:
    (tmp_path / name).write_bytes(content)
    shown = tensorgate("inspect", str(tmp_path / name))
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1)
    assert wanted in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--target", "9.0"], "TensorRT-RTX 1.7.1.116 cannot build for it; it builds for 7.5, 8.0, 8.6, 8.9, 12.0, 12.1"),
        (["--target", "ampere"], "wanted compute capabilities such as 8.9,12.0, got 'ampere'"),
        (["--target", "current"], "there is no GPU in this machine"),
        (["--workspace", "much"], "--workspace: wanted bytes such as 512MiB or 1GiB, got 'much'"),
        (["--shapes", "image:2x1x8x8..1x1x8x8"], "axis 0: wanted min <= opt <= max"),
        (["--refit"], "needs a GPU in this machine to build such a plan"),
        (["--strip-weights"], "needs a GPU in this machine to build such a plan"),
        (["--version-compatible"], "it is full TensorRT's"),
        (["--hardware-compatible", "ampere+"], "is full TensorRT's"),
        (["--plugin", "no.so"], "--plugin no.so: there is no such file"),
        (["--plugin", str(DIGITS)], "cannot be loaded"),
        (["--precision", "int8"], "int8 is calibrated: name real data with --data"),
        (["--precision", "int8", "--data", str(SPLIT)], "input 'image' has no samples"),
        (["--precision", "int8", "--data", "FLAT"], "input 'image': wanted [samples, 1, 8, 8], got [4, 64]"),
        (["--precision", "int8", "--data", "WIDE"], "input 'image': wanted float32, got float64"),
        (["--precision", "int8", "--data", str(DIGITS)], "wanted an .npz file of numbers"),
        (["--precision", "fp16", "--data", str(SPLIT)], "--data is for int8"),
        (["--precision", "int8-weights"], "no MatMul left to convert"),
        (["--flavour", "tensorrt"], "TensorRT is not installed: pip install 'tensorgate[tensorrt,build]'"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_build(tmp_path: Path, arguments: list[str], wanted: str) -> None:
    np.savez(tmp_path / "FLAT", image=np.ones((4, 64), np.float32))
    np.savez(tmp_path / "WIDE", image=np.ones((4, 1, 8, 8)))
    arguments = [str(tmp_path / f"{text}.npz") if text in ("FLAT", "WIDE") else text for text in arguments]
    done = tensorgate("build", str(DIGITS), "-o", str(tmp_path / "1"), *arguments)
    assert done.returncode == 1
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        (["1x1x8x8..4x1x8x8..8x1x8x8", "9x1x8x8..16x1x8x8..64x1x8x8"], 64),
        (["16x1x8x8..32x1x8x8..64x1x8x8", "1x1x8x8..4x1x8x8..8x1x8x8"], 8),
        (["2x1x8x8..4x1x8x8"], 0),
    ],
)
def test_the_largest_batch_is_one_up_to_which_the_profiles_leave_no_gap(tmp_path: Path, shapes: list[str], rows: int) -> None:
    arguments = [part for text in shapes for part in ("--shapes", f"image:{text}")]
    assert tensorgate("build", str(DIGITS), "-o", str(tmp_path / "digits" / "1"), *arguments).returncode == 0
    assert len(read_metadata(tmp_path / "digits" / "1" / "model.plan").profiles) == len(shapes)
    assert f"max_batch_size = {rows}  #" in (tmp_path / "digits" / "model.toml").read_text()


def test_a_file_in_another_precision_is_not_converted(tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    convert(DIGITS, half, Precision.FP16)
    for precision in ("fp32", "int8-weights"):
        done = tensorgate("build", str(half), "-o", str(tmp_path / "2"), "--precision", precision)
        assert (done.returncode, "fp16" in done.stderr) == (1, True)
    assert tensorgate("build", str(half), "-o", str(tmp_path / "2")).returncode == 0
    assert read_metadata(tmp_path / "2" / "model.plan").precision == "fp16"


def test_each_operator_that_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    nodes = [
        helper.make_node("Scaler", ["x"], ["a"], name="scale", domain="ai.onnx.ml", offset=[0.0], scale=[2.0]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Private", ["b"], ["y"], name="mine", domain="ours"),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("ours", 1)]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets).SerializeToString())
    refused = refusal(path, tmp_path)
    assert str(refused) == "model.onnx: TensorRT cannot take 2 nodes (Private, Scaler)"
    assert refused.details[0] == "  node 0 Scaler 'scale': write it as Sub and Mul: (x - offset) * scale"
    assert refused.details[1].startswith("  node 2 Private 'mine': name the library that has it with --plugin")


def quantised(path: Path, zero_point: int) -> Path:
    """A matrix product between quantisers whose zero point is not TensorRT's."""
    tensors = [
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.array(zero_point, np.int8), "z"),
        numpy_helper.from_array(np.ones((4, 4), np.float32), "w"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dequantise"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="product"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    return path


def test_a_zero_point_that_is_not_zero_is_explained(tmp_path: Path) -> None:
    refused = refusal(quantised(tmp_path / "model.onnx", 3), tmp_path)
    assert any("TensorRT quantises symmetrically" in line for line in refused.details)
    built(quantised(tmp_path / "model.onnx", 0), tmp_path / "model.plan")


def test_uint8_may_only_be_cast(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.UINT8, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    assert any("UINT8 may only be cast" in line for line in refusal(path, tmp_path).details)


def test_dimensions_of_equal_names_that_differ_are_explained(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "side", "side"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    arguments = ["build", str(path), "-o", str(tmp_path / "1"), "--shapes", "x:1x4x8"]
    refused = tensorgate(*arguments)
    assert refused.returncode == 1
    assert "or say that they differ: --independent-dims side" in refused.stderr
    assert tensorgate(*arguments, "--independent-dims", "side").returncode == 0


def test_doubles_are_floats_in_the_plan_and_its_metadata_say_both(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    cast = helper.make_node("Cast", ["wide"], [model.graph.input[0].name], to=TensorProto.FLOAT)
    model.graph.node.insert(0, cast)
    shape = [dimension.dim_value or dimension.dim_param for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("wide", TensorProto.DOUBLE, shape))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    observer = built(path, tmp_path / "model.plan")
    assert any("is DOUBLE in the file and FLOAT in the plan" in note for note in observer.notes)
    (tensor,) = read_metadata(tmp_path / "model.plan").inputs
    assert (tensor.onnx_datatype, tensor.datatype) == ("DOUBLE", "FLOAT")


class _Leaving(SilentObserver):
    """Wants no plan any more after a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def step_done(self, name: str, step: int) -> None:  # noqa: ARG002
        self.steps += 1

    def is_cancelled(self) -> bool:
        return self.steps >= 3


def test_a_build_is_cancelled_and_leaves_what_was_there(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    built(DIGITS, plan)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    observer = _Leaving()
    with pytest.raises(BuildCancelled):
        build_plan(load_bindings("tensorrt_rtx"), BuildRequest(DIGITS, plan), NO_GPU, observer)
    assert observer.steps >= 3
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_ctrl_c_ends_a_build_without_half_a_plan(tmp_path: Path) -> None:
    model = ROOT / "bench" / "models" / "tinygpt_char.onnx"
    command = [sys.executable, "-m", "tensorgate", "build", str(model), "-o", str(tmp_path / "1"), "--target", ",".join(TARGETS)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "suggested" in process.stderr.readline()
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=40)
    assert process.returncode == 130, said
    assert "the build was cancelled; nothing was written" in said
    assert not (tmp_path / "1").exists()


def test_full_tensorrt_needs_the_gpu_it_builds_for() -> None:
    class FakeFull:
        """A flavour that is not installed here; no build gets as far as its module."""

    with pytest.raises(BuildRefused) as refused:
        check_request(Bindings(TENSORRT, FakeFull, "11.4"), BuildRequest(DIGITS, Path("model.plan")), NO_GPU)
    assert "there is none in this machine" in str(refused.value)
    assert refused.value.details == ("  Build ahead of time with TensorRT-RTX instead: --flavour rtx --target 8.9",)


@pytest.mark.parametrize(("text", "size"), [("1GiB", 1 << 30), ("512M", 512 << 20), ("100", 100), ("2 kb", 2048)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
