"""Conversion on a real classifier and its held-out digits: what stays right, what does not, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.precision.conversion import Precision, convert

DATA = Path(__file__).parent / "data" / "precision"
MODEL = DATA / "digits_cnn.onnx"
SPLIT = np.load(DATA / "digits_split0.npz")
CALIBRATION = SPLIT["Xtr"][:256].reshape(-1, 1, 8, 8)


def accuracy(path: Path) -> float:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits: Any = session.run(None, {"image": SPLIT["Xte"].reshape(-1, 1, 8, 8)})[0]
    return float((logits.argmax(1) == SPLIT["yte"]).mean())


def test_fp16_keeps_the_accuracy_and_the_datatypes_of_inputs_and_outputs(tmp_path: Path) -> None:
    done = convert(MODEL, tmp_path / "fp16.onnx", Precision.FP16)
    graph = onnx.load(done.path).graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}
    assert any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in graph.initializer)
    assert accuracy(done.path) == pytest.approx(accuracy(MODEL), abs=0.002)


def test_int8_with_real_calibration_data_keeps_the_accuracy(tmp_path: Path) -> None:
    done = convert(MODEL, tmp_path / "int8.onnx", Precision.INT8, {"image": CALIBRATION})
    operators = [node for node in onnx.load(MODEL).graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    assert len(done.quantised) == len(operators)
    assert accuracy(done.path) >= accuracy(MODEL) - 0.01


def test_int8_with_data_of_another_range_converts_without_an_error_and_is_wrong(tmp_path: Path) -> None:
    done = convert(MODEL, tmp_path / "int8.onnx", Precision.INT8, {"image": CALIBRATION * np.float32(0.1)})
    assert accuracy(done.path) < 0.6


def test_a_node_named_to_stay_float_is_not_quantised(tmp_path: Path) -> None:
    kept = convert(MODEL, tmp_path / "all.onnx", Precision.INT8, {"image": CALIBRATION}).quantised[0]
    done = convert(MODEL, tmp_path / "some.onnx", Precision.INT8, {"image": CALIBRATION}, keep_float=(kept,))
    assert kept not in done.quantised
    assert done.quantised


def test_a_node_to_keep_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no node named 'conv9'"):
        convert(MODEL, tmp_path / "int8.onnx", Precision.INT8, {"image": CALIBRATION}, keep_float=("conv9",))


def test_int8_without_samples_for_an_input_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="'image' has no samples"):
        convert(MODEL, tmp_path / "int8.onnx", Precision.INT8)
    assert not (tmp_path / "int8.onnx").exists()


def test_a_sample_may_be_the_whole_input_where_the_batch_is_not_the_first_axis(tmp_path: Path) -> None:
    silero = Path(__file__).parent / "data" / "silero_vad_16k_batch.onnx"
    random = np.random.default_rng(0)
    frames = random.standard_normal((4, 576)).astype(np.float32)
    states = random.standard_normal((4, 2, 1, 128)).astype(np.float32)
    assert convert(silero, tmp_path / "int8.onnx", Precision.INT8, {"input": frames, "state": states}).quantised
    with pytest.raises(InvalidArgument, match=r"input 'state': wanted \[samples, 2, any, 128\], got \[4, 1, 128\]"):
        convert(silero, tmp_path / "no.onnx", Precision.INT8, {"input": frames, "state": states[:, 0]})


def test_a_bias_of_two_dimensions_stays_float(tmp_path: Path) -> None:
    arrays = {"w": np.eye(4, dtype=np.float32), "b": np.ones((1, 4), np.float32)}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="product")],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    source = tmp_path / "gemm.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), source)
    done = convert(source, tmp_path / "int8.onnx", Precision.INT8, {"x": np.ones((8, 4), np.float32)})
    assert done.quantised == ("product",)
    assert "b" in {tensor.name for tensor in onnx.load(done.path).graph.initializer}


def test_weights_alone_become_int8_without_any_data(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((64, 32)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 32])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    source = tmp_path / "product.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), source)
    done = convert(source, tmp_path / "weights.onnx", Precision.INT8_WEIGHTS)
    assert done.quantised == ("product",)
    x = random.standard_normal((8, 64)).astype(np.float32)
    y: Any = onnxruntime.InferenceSession(done.path).run(None, {"x": x})[0]
    bound = np.abs(x).sum(axis=1, keepdims=True) * np.abs(weight).max(axis=0) / 254
    assert (np.abs(y - x @ weight) <= bound + 1e-4).all()
    assert not np.array_equal(y, x @ weight)


def test_weights_of_a_model_without_such_products_are_refused_rather_than_copied(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no MatMul"):
        convert(MODEL, tmp_path / "weights.onnx", Precision.INT8_WEIGHTS)
    assert not (tmp_path / "weights.onnx").exists()
