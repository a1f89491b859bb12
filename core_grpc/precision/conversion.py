"""An FP32 ONNX file written again in FP16 or INT8, in the form that strongly typed TensorRT and ONNX Runtime both read.

INT8 is explicit: QuantizeLinear and DequantizeLinear around Conv, MatMul and Gemm alone. Weights have one scale a channel, zero points are
0 and biases stay float, because TensorRT refuses the rest. A converted file may be wrong without any error: measure it on held-out data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from core_grpc.errors import InvalidArgument

QUANTISED_OPERATORS = ("Conv", "MatMul", "Gemm")
_LEAST_OPSET, _OPSET = 13, 17
"""Scales per channel exist since opset 13; older files are raised to 17."""


class Precision(StrEnum):
    """What a file can be converted to."""

    FP16 = "fp16"
    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"


@dataclass(frozen=True)
class Conversion:
    """What was done: the file written, its precision, and the nodes (by name) that now compute on quantised values."""

    path: Path
    precision: Precision
    quantised: tuple[str, ...] = ()


def convert(
    source: Path,
    target: Path,
    precision: Precision,
    calibration: Mapping[str, np.ndarray[Any, Any]] | None = None,
    keep_float: tuple[str, ...] = (),
) -> Conversion:
    """Write ``source`` to ``target`` in ``precision``. Inputs and outputs keep their datatypes.

    ``calibration``: for INT8, an array for each input, real data of the kind that will be served: [samples, …] where a sample is a row of
    the batch, or [samples, *the input's whole shape], as it has to be where the batch is not the first axis. ``keep_float``: names of nodes
    that are not quantised. Raises ``InvalidArgument`` when INT8 has no calibration data for an input, when no node has such a name,
    and when INT8 weights would change nothing.
    """
    model = _at_least_opset(onnx.load(source))
    for name in sorted(set(keep_float) - {node.name for node in model.graph.node}):
        raise InvalidArgument(f"keep_float: the model has no node named {name!r}")
    if precision is Precision.FP16:
        onnx.save(_to_fp16(model), target)
    elif precision is Precision.INT8_WEIGHTS:
        onnx.save(_quantise_weights(model, keep_float), target)
    else:
        _quantise_statically(model, target, calibration or {}, keep_float)
    return Conversion(target, precision, _quantised_nodes(onnx.load(target)))


def _at_least_opset(model: Any) -> Any:
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), _OPSET)
    return version_converter.convert_version(model, _OPSET) if opset < _LEAST_OPSET else model


def _to_fp16(model: Any) -> Any:
    return convert_float_to_float16(model, keep_io_types=True)


def _quantise_statically(model: Any, target: Path, calibration: Mapping[str, np.ndarray[Any, Any]], keep_float: tuple[str, ...]) -> None:
    weights = {tensor.name for tensor in model.graph.initializer}
    samples = {value.name: _checked_samples(value, calibration) for value in model.graph.input if value.name not in weights}
    with TemporaryDirectory() as folder:
        raised, prepared = Path(folder) / "raised.onnx", Path(folder) / "prepared.onnx"
        onnx.save(model, raised)
        quant_pre_process(raised, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            target,
            _Samples(samples),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(QUANTISED_OPERATORS),
            nodes_to_exclude=list(keep_float),
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "QuantizeBias": False,
                # It makes room for INT8 biases, which there are none of, and fails on some layers.
                "QDQDisableWeightAdjustForInt32Bias": True,
            },
        )


def _checked_samples(value: Any, calibration: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The data of one input as [samples, *the input's shape], held against it: a runtime's own text does not name the file's array."""
    samples = calibration.get(value.name)
    if samples is None or not len(samples):
        raise InvalidArgument(f"calibration data: input {value.name!r} has no samples; INT8 needs real data for every input")
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if samples.dtype != dtype:
        raise InvalidArgument(f"calibration data: input {value.name!r}: wanted {dtype}, got {samples.dtype}")
    wanted = [dimension.dim_value or -1 for dimension in value.type.tensor_type.shape.dim]
    is_row = wanted[:1] in ([-1], [1])
    whole = samples[:, np.newaxis] if is_row and samples.ndim == len(wanted) else samples
    if whole.ndim != len(wanted) + 1 or any(size not in (-1, got) for size, got in zip(wanted, whole.shape[1:], strict=True)):
        sizes = ["samples", *("any" if size < 0 else str(size) for size in wanted[is_row:])]
        raise InvalidArgument(f"calibration data: input {value.name!r}: wanted [{', '.join(sizes)}], got {list(samples.shape)}")
    return whole


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Calibration data one sample at a time, as the quantiser asks for it."""

    def __init__(self, calibration: Mapping[str, np.ndarray[Any, Any]]) -> None:
        samples = min(len(values) for values in calibration.values())
        self._feeds = iter([{name: values[i] for name, values in calibration.items()} for i in range(samples)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def _quantise_weights(model: Any, keep_float: tuple[str, ...]) -> Any:
    """Constant 2-D right-hand sides of MatMul as INT8 with a float scale a column: w = q * s, s = max|w| / 127."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[Any] = []
    replaced: set[str] = set()
    for index, node in enumerate(model.graph.node):
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" and node.name not in keep_float else None
        if weight is not None and weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) == 2:
            stem = f"{weight.name}_int8_{index}"
            values = numpy_helper.to_array(weight)
            scale = np.maximum(np.abs(values).max(axis=0), np.finfo(np.float32).tiny) / np.float32(127)
            quantised = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
            model.graph.initializer.append(numpy_helper.from_array(quantised, f"{stem}_q"))
            model.graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), f"{stem}_s"))
            nodes.append(helper.make_node("DequantizeLinear", [f"{stem}_q", f"{stem}_s"], [stem], name=stem, axis=1))
            node.input[1] = stem
            replaced.add(weight.name)
        nodes.append(node)
    if not replaced:
        raise InvalidArgument("int8-weights: no MatMul left to convert multiplies by a constant FP32 matrix")
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    unused = replaced - {name for node in kept for name in node.input}
    tensors = [onnx.TensorProto.FromString(t.SerializeToString()) for t in model.graph.initializer if t.name not in unused]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    return model


def _quantised_nodes(model: Any) -> tuple[str, ...]:
    dequantised = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    operators = (node for node in model.graph.node if node.op_type in QUANTISED_OPERATORS)
    return tuple(node.name for node in operators if node.input[1] in dequantised)
