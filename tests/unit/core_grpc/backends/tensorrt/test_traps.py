"""What TensorRT-RTX takes silently, refuses late, or says unclearly, with files as other tools write them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from core_grpc.backends.tensorrt.bindings import listening, load_bindings, logger_of
from core_grpc.backends.tensorrt.build.builder import build_plan
from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.build.options import BuildRequest
from core_grpc.backends.tensorrt.build.profiles import parse_profile
from core_grpc.backends.tensorrt.build.progress import SilentObserver
from core_grpc.backends.tensorrt.description import spelled_profile
from core_grpc.backends.tensorrt.machine import Machine
from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, metadata_path, mismatches, read_metadata
from tests.support.programs import ROOT

DATA = ROOT / "tests" / "data"
DIGITS = DATA / "precision" / "digits_cnn.onnx"
PERCEPTRON = DATA / "tabular" / "perceptron.onnx"
TINY_GPT = ROOT / "bench" / "models" / "tinygpt_char.onnx"


def built(model: Path, directory: Path, **options: Any) -> PlanMetadata:
    request = BuildRequest(model, directory / "model.plan", **options)
    return build_plan(load_bindings("tensorrt_rtx"), request, Machine(0), SilentObserver())


def refusal(model: Path, directory: Path, **options: Any) -> tuple[str, ...]:
    """All lines of the refusal."""
    with pytest.raises(BuildRefused) as refused:
        built(model, directory / "out", **options)
    assert not (directory / "out").exists()
    return refused.value.lines()


def saved(path: Path, nodes: list[Any], values: Mapping[str, tuple[int, list[Any]]], tensors: list[Any] | None = None) -> Path:
    """A model of these nodes; of the values, those beginning with ``y`` are outputs."""
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in values.items()]
    inputs = [info for info in infos if not info.name.startswith("y")]
    outputs = [info for info in infos if info.name.startswith("y")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors or [])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString())
    return path


class Digits(CalibrationDataReader):  # type: ignore[misc]
    """Sixteen of them."""

    def __init__(self) -> None:
        digits = np.load(DATA / "precision" / "digits_split0.npz")["Xtr"][:16].reshape(-1, 1, 8, 8)
        self._feeds = iter([{"image": digits[index : index + 1]} for index in range(16)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def quantised(directory: Path, activations: QuantType, **extra: bool) -> Path:
    """The digits' CNN as ONNX Runtime quantises it with its own defaults and these."""
    prepared, path = directory / "prepared.onnx", directory / "quantised.onnx"
    quant_pre_process(DIGITS, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, path, Digits(), per_channel=True, activation_type=activations, weight_type=QuantType.QInt8, extra_options=extra
    )
    return path


def test_what_skl2onnx_writes_is_refused_node_by_node(tmp_path: Path) -> None:
    lines = refusal(DATA / "tabular" / "perceptron_skl2onnx.onnx", tmp_path)
    assert lines[0] == "perceptron_skl2onnx.onnx: TensorRT cannot take 2 nodes (ArrayFeatureExtractor, Scaler)"
    assert lines[1] == "  node 0 Scaler 'Scaler': write it as Sub and Mul: (x - offset) * scale"
    assert lines[2].startswith("  node 14 ArrayFeatureExtractor 'ArrayFeatureExtractor': write it as Gather")
    trees = refusal(DATA / "tabular" / "boosted_trees_skl2onnx.onnx", tmp_path)
    assert trees[1].startswith(
        "  node 0 TreeEnsembleClassifier 'TreeEnsembleClassifier': write the trees as tensor operators (docs/tensorrt.md)"
    )


def test_dynamic_quantisation_is_refused_with_every_node_even_without_names(tmp_path: Path) -> None:
    quantize_dynamic(PERCEPTRON, tmp_path / "dynamic.onnx")
    lines = refusal(tmp_path / "dynamic.onnx", tmp_path)
    wanted = {
        f"  node {index} {node.op_type} '{node.name or node.output[0]}'"
        for index, node in enumerate(onnx.load(tmp_path / "dynamic.onnx").graph.node)
        if node.op_type in ("DynamicQuantizeLinear", "MatMulInteger")
    }
    assert lines[0] == "dynamic.onnx: TensorRT cannot take 6 nodes (DynamicQuantizeLinear, MatMulInteger)"
    assert {line.partition(":")[0] for line in lines[1:]} == wanted
    assert all("quantise the FP32 file with Q/DQ nodes instead" in line for line in lines[1:])


def test_quantised_biases_are_explained(tmp_path: Path) -> None:
    lines = refusal(quantised(tmp_path, QuantType.QInt8, ActivationSymmetric=True), tmp_path)
    assert "node 0 DequantizeLinear 'c1.bias_DequantizeLinear': a bias is quantised to INT32" in lines[1]


def test_unsigned_activations_are_explained(tmp_path: Path) -> None:
    lines = refusal(quantised(tmp_path, QuantType.QUInt8, QuantizeBias=False), tmp_path)
    assert "TensorRT quantises symmetrically" in lines[1]


def branches(path: Path) -> Path:
    """An If inside an If: the parser says yes to it."""

    def branch(name: str, *nodes: Any) -> Any:
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4])])

    def leaf(name: str, operator: str, *inputs: str) -> Any:
        return branch(name, helper.make_node(operator, list(inputs), [name]))

    inner = helper.make_node("If", ["b"], ["inner"], then_branch=leaf("same", "Identity", "x"), else_branch=leaf("square", "Mul", "x", "x"))
    outer = helper.make_node("If", ["a"], ["y"], then_branch=branch("inner", inner), else_branch=leaf("twice", "Add", "x", "x"))
    shape = ["batch", 4]
    return saved(
        path,
        [outer],
        {"x": (TensorProto.FLOAT, shape), "a": (TensorProto.BOOL, []), "b": (TensorProto.BOOL, []), "y": (TensorProto.FLOAT, shape)},
    )


def test_what_parses_and_does_not_build_is_told_apart_and_explained(tmp_path: Path) -> None:
    lines = refusal(branches(tmp_path / "model.onnx"), tmp_path)
    assert lines[0] == "model.onnx: the parser took it, but TensorRT cannot build it"
    assert "branch" in lines[-1]
    assert lines[-1].startswith("    → ")


def test_a_gpu_that_cannot_run_the_model_is_named_in_the_refusal(tmp_path: Path) -> None:
    lines = refusal(DIGITS, tmp_path, targets=("7.5",))
    assert any("SM75" in line for line in lines)
    assert "GPUs before 8.0 cannot run this in FP32" in lines[-1]


def test_shapes_that_contradict_each_other_build_with_a_warning_that_the_metadata_keep(tmp_path: Path) -> None:
    text = "input_ids:1x1..1x64..1x128,attention_mask:1x1..1x128..1x128,past_key_values.0.key:1x4x0x32..1x4x64x32..1x4x127x32"
    warnings = built(TINY_GPT, tmp_path, profiles=(parse_profile(text),)).warnings
    assert any("kMAX values are not self-consistent" in text and "a profile for each use" in text for text in warnings)
    assert not any("binding" in text for text in warnings)
    assert built(TINY_GPT, tmp_path).warnings == ()


def test_an_input_whose_values_are_a_shape_is_explained(tmp_path: Path) -> None:
    values: dict[str, tuple[int, list[Any]]] = {
        "x": (TensorProto.FLOAT, ["n", 4]),
        "to": (TensorProto.INT64, [2]),
        "y": (TensorProto.FLOAT, ["a", "b"]),
    }
    lines = refusal(saved(tmp_path / "m.onnx", [helper.make_node("Reshape", ["x", "to"], ["y"])], values), tmp_path)
    assert "shape input tensor to" in lines[1]
    assert "make it a constant" in lines[2]


def test_a_size_of_zero_is_one_that_varies(tmp_path: Path) -> None:
    kind: tuple[int, list[Any]] = (TensorProto.FLOAT, [0, 4])
    model = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": kind, "y": kind})
    assert built(model, tmp_path).inputs[0].shape == (-1, 4)


def test_a_graph_that_is_none_is_told_in_the_words_of_onnx(tmp_path: Path) -> None:
    kind = (TensorProto.FLOAT, ["n", 4])
    lines = refusal(saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["lost"], ["y"])], {"x": kind, "y": kind}), tmp_path)
    assert lines[-1].startswith("  the file is no valid ONNX model: Nodes in a graph must be topologically sorted, however input 'lost'")


def test_scalars_need_no_shapes_and_the_suggestion_can_be_typed_again(tmp_path: Path) -> None:
    values: dict[str, tuple[int, list[Any]]] = {
        "x": (TensorProto.FLOAT, ["n", 4]),
        "by": (TensorProto.FLOAT, []),
        "y": (TensorProto.FLOAT, ["n", 4]),
    }
    model = saved(tmp_path / "m.onnx", [helper.make_node("Mul", ["x", "by"], ["y"])], values)
    suggested = built(model, tmp_path)
    assert spelled_profile(suggested.profiles[0]) == "x:1x4..4x4..8x4"
    assert built(model, tmp_path, profiles=(parse_profile(spelled_profile(suggested.profiles[0])),)).profiles == suggested.profiles


def test_damaged_files_are_built_or_refused_in_short_lines_and_nothing_else(tmp_path: Path) -> None:
    content = PERCEPTRON.read_bytes()
    refusals: list[BuildRefused] = []
    for seed in (45, 98, 180, *range(30)):  # The first three damage a name, so that it is no UTF-8.
        (tmp_path / "model.onnx").write_bytes(damaged(content, random.Random(seed)))
        try:
            built(tmp_path / "model.onnx", tmp_path)
        except BuildRefused as refusal:
            refusals.append(refusal)
    assert len(refusals) > 3
    assert all("\n" not in line and len(line) < 600 for refusal in refusals for line in refusal.lines())


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, lost or added, most of them where the graph is and not the weights."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4, 8])):
        kind = chance.random()
        size = len(changed)
        place = chance.choice([chance.randrange(min(3000, size)), size - 1 - chance.randrange(min(6000, size)), chance.randrange(size)])
        if kind < 0.6:
            changed[place] = chance.randrange(256)
        elif kind < 0.8:
            del changed[place : place + chance.randrange(1, 9)]
        else:
            changed[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 5)))
    return bytes(changed)


def weights(kind: int, name: str = "w") -> Any:
    values = np.random.default_rng(0).integers(-7, 8, 256)
    return helper.make_tensor(name, kind, [16, 16], [int(value) if kind == TensorProto.INT4 else float(value) for value in values])


def test_files_in_bf16_and_with_int4_weights_are_built_as_they_are(tmp_path: Path) -> None:
    shape: list[Any] = ["batch", 16]
    half, wide = (int(TensorProto.FLOAT16), shape), (int(TensorProto.BFLOAT16), shape)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    brain = saved(tmp_path / "bf16.onnx", [product], {"x": wide, "y": wide}, [weights(TensorProto.BFLOAT16)])
    metadata = built(brain, tmp_path / "bf16", targets=("8.0", "12.0"))
    assert (metadata.precision, metadata.inputs[0].datatype) == ("bf16", "BF16")
    scale = numpy_helper.from_array(np.array(0.1, np.float16), "s")
    dequantise = helper.make_node("DequantizeLinear", ["q", "s"], ["w"])
    packed = saved(tmp_path / "int4.onnx", [dequantise, product], {"x": half, "y": half}, [weights(TensorProto.INT4, "q"), scale])
    assert built(packed, tmp_path / "int4").precision == "int4"


def test_fp8_is_built_for_gpus_that_have_it_and_refused_for_others(tmp_path: Path) -> None:
    tensors = [
        weights(TensorProto.FLOAT),
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0]),
    ]
    nodes = [helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}q"]) for name in "xw"]
    nodes += [helper.make_node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"]) for name in "xw"]
    nodes += [helper.make_node("MatMul", ["xd", "wd"], ["y"])]
    kind = (TensorProto.FLOAT, ["batch", 16])
    model = saved(tmp_path / "fp8.onnx", nodes, {"x": kind, "y": kind}, tensors)
    metadata = built(model, tmp_path / "new", targets=("8.9", "12.0"))
    assert metadata.precision == "fp8"
    assert "FP8 runs on GPUs of compute capability 8.9 and newer" in metadata.warnings
    assert "FP8 needs compute capability 8.9 or newer" in refusal(model, tmp_path, targets=("8.0",))[-1]


def test_what_the_compiler_prints_stays_out_of_the_output(tmp_path: Path) -> None:
    """A constant too small for FP16 makes it print a warning, past its logger, to the process's standard output."""
    kind = (TensorProto.FLOAT, ["batch", 16])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=1),
        helper.make_node("Clip", ["sum", "least"], ["clipped"]),
        helper.make_node("Div", ["x", "clipped"], ["y"]),
    ]
    model = saved(tmp_path / "m.onnx", nodes, {"x": kind, "y": kind}, [numpy_helper.from_array(np.array(1e-9, np.float32), "least")])
    command = [sys.executable, "-m", "tensorgate", "build", str(model), "-o", str(tmp_path / "1"), "--precision", "fp16", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True)
    assert json.loads(done.stdout)["source"]["file"] == "m.onnx"


def test_two_builds_of_a_model_have_one_source_and_metadata_of_their_own(tmp_path: Path) -> None:
    """Plans are not the same bytes twice, so what identifies a build is the model's SHA-256, and the plan's what belongs together."""
    one, other = (built(DIGITS, tmp_path / name, targets=(target,)) for name, target in (("one", "8.0"), ("other", "12.0")))
    assert one.source == other.source
    plan = tmp_path / "other" / "model.plan"
    assert mismatches(plan, other) == ()
    metadata_path(tmp_path / "one" / "model.plan").replace(metadata_path(plan))
    assert mismatches(plan, read_metadata(plan))


def test_a_plan_cannot_be_read_back_without_a_gpu_and_its_metadata_can(tmp_path: Path) -> None:
    built(DIGITS, tmp_path)
    rtx = load_bindings("tensorrt_rtx")
    runtime = rtx.module.Runtime(logger_of(rtx))
    if (engine := runtime.deserialize_cuda_engine((tmp_path / "model.plan").read_bytes())) is not None:
        pytest.skip(f"this machine has a GPU that reads it: {engine.num_layers} layers")
    metadata = read_metadata(tmp_path / "model.plan")
    assert [tensor.name for tensor in (*metadata.inputs, *metadata.outputs)] == ["image", "logits"]
    assert metadata.profiles[0]["image"].max == (8, 1, 8, 8)
    assert metadata.layer_kinds["CONVOLUTION"] == 3
    assert sum(metadata.layer_kinds.values()) == metadata.layers


def test_all_builders_of_a_process_share_the_logger_that_tensorrt_keeps(tmp_path: Path) -> None:
    """It warns where a second logger comes while something lives that has the first, and from then on who hears what is uncertain."""
    rtx = load_bindings("tensorrt_rtx")
    heard: list[str] = []
    first = rtx.module.Builder(logger_of(rtx))
    with listening(rtx, lambda _severity, message: heard.append(message)):
        built(DIGITS, tmp_path)
        assert heard
        assert not [message for message in heard if "differs from one already registered" in message]
    del first
