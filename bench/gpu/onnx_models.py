"""The models of the GPU report, made by ``onnx.helper``: no download, the same weights for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

IMAGE = (3, 224, 224)
CLASSES = 1000
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


class _Graph:
    """Nodes and weights as they are added."""

    def __init__(self, seed: int, dtype: type[np.floating[Any]]) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(seed)
        self._dtype = dtype

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, values: NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(self._dtype), name))
        return name

    def convolution(self, source: str, channels: tuple[int, int], kernel: int, stride: int, gain: float = 1.0) -> str:
        """With a bias, as after its batch normalisation was folded in."""
        given, made = channels
        scale = gain * np.sqrt(2 / (given * kernel * kernel))
        weights = self._random.normal(0, scale, (made, given, kernel, kernel))
        pad = kernel // 2
        return self.add(
            "Conv",
            [source, self.weight(weights), self.weight(self._random.normal(0, 0.01, made))],
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        )


def resnet50(dtype: type[np.floating[Any]] = np.float16, seed: int = 0) -> Any:
    """ResNet-50 with random weights, ``[batch, 3, 224, 224]`` uint8 in (normalised in the graph), ``[batch, 1000]`` probabilities out.

    For speed, and to compare two engines: it has learned nothing.
    """
    graph = _Graph(seed, dtype)
    onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    pixels = graph.add("Cast", ["image"], to=onnx_type)
    centred = graph.add("Sub", [pixels, graph.weight(np.full((1, 3, 1, 1), 118.0))])
    value = graph.add("Mul", [centred, graph.weight(np.full((1, 3, 1, 1), 1 / 58))])
    value = graph.add("Relu", [graph.convolution(value, (3, 64), 7, 2)])
    value = graph.add("MaxPool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (width, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            value, channels = _bottleneck(graph, value, channels, width, stride), width * 4
    pooled = graph.add("Flatten", [graph.add("GlobalAveragePool", [value])])
    rows = graph.weight(graph._random.normal(0, 0.03, (CLASSES, channels)))  # noqa: SLF001 (one draw of the same generator)
    logits = graph.add("Gemm", [pooled, rows, graph.weight(np.zeros(CLASSES))], transB=1)
    scores = graph.add("Cast", [logits], to=TensorProto.FLOAT)
    graph.nodes.append(helper.make_node("Softmax", [scores], ["probabilities"], axis=1))
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", *IMAGE])
    probabilities = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])
    return _model(graph.nodes, [image], [probabilities], graph.weights)


def _bottleneck(graph: _Graph, source: str, channels: int, width: int, stride: int) -> str:
    first = graph.add("Relu", [graph.convolution(source, (channels, width), 1, 1)])
    second = graph.add("Relu", [graph.convolution(first, (width, width), 3, stride)])
    # A small last step, so that sums over sixteen blocks stay within half precision.
    third = graph.convolution(second, (width, width * 4), 1, 1, gain=0.2)
    if channels != width * 4:
        source = graph.convolution(source, (channels, width * 4), 1, stride, gain=0.7)
    return graph.add("Relu", [graph.add("Add", [third, source])])


def identity(onnx_type: int) -> Any:
    """Y = X of any type, ``[batch, 3]``."""
    shape: list[str | int | None] = ["batch", 3]
    node = helper.make_node("Identity", ["X"], ["Y"])
    return _model(
        [node], [helper.make_tensor_value_info("X", onnx_type, shape)], [helper.make_tensor_value_info("Y", onnx_type, shape)], []
    )


def perceptron(width: int = 256) -> Any:
    """Y = relu(X W) W + X, ``[batch, length, width]``: two dimensions that vary."""
    weights = numpy_helper.from_array(np.random.default_rng(1).normal(0, 1 / 16, (width, width)).astype(np.float32), "W")
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "W"], ["c"]),
        helper.make_node("Add", ["c", "X"], ["Y"]),
    ]
    shape: list[str | int | None] = ["batch", "length", width]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)]
    return _model(nodes, inputs, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)], [weights])


def non_zero() -> Any:
    """The places of what is not zero in ``[1, n]``: how many, only the data tell."""
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [1, "n"])]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.INT64, [2, "count"])]
    return _model([helper.make_node("NonZero", ["X"], ["Y"])], inputs, outputs, [])


def write(repository: Path, name: str, model: Any, config: str) -> Path:
    """``<repository>/<name>/1/model.onnx`` with its model.toml; the file."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    onnx.save(model, directory / "model.onnx")
    (repository / name / "model.toml").write_text(config, encoding="utf-8")
    return directory / "model.onnx"


def _model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: Sequence[Any]) -> Any:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
