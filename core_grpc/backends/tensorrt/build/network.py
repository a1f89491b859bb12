"""The ONNX file through TensorRT's parser: a network, or all that it could not take, by node, with what to do about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core_grpc.backends.tensorrt.bindings import Bindings, logger_of
from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.build.onnx_model import GraphTensor, OnnxModel, checker_says
from core_grpc.backends.tensorrt.build.remedies import is_stray, remedy_for
from core_grpc.backends.tensorrt.plan_metadata import TensorInfo

_LISTED = 40
"""Nodes that are listed one by one."""
_TEXT_LIMIT = 300
"""Characters of TensorRT's own text."""


@dataclass(frozen=True, slots=True)
class ParsedNetwork:
    """A network, with what has to live as long as it does."""

    network: Any
    parser: Any
    """Holds the weights that the network points to."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    layer_kinds: Mapping[str, int]
    """How many of each of TensorRT's kinds, most first."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Complaint:
    index: int
    """The node's; -1 where none is to blame."""
    name: str
    """The node's; of one that has none, its first output's."""
    operator: str
    text: str

    def line(self) -> str:
        node = f"node {self.index} {self.operator or '?'} '{self.name}'" if self.index >= 0 else "the model"
        return f"  {node}: {remedy_for(self.operator, self.text) or self.text}"


def parse_network(bindings: Bindings, builder: Any, model: OnnxModel) -> ParsedNetwork:
    """Parses a checked model.

    Raises:
        BuildRefused: TensorRT cannot take it; ``details`` has one line for each node.
    """
    trt = bindings.module
    network = builder.create_network(_creation_flags(trt))
    parser = trt.OnnxParser(network, logger_of(bindings))
    # The path is where external data lie; those of a link lie beside the link (as in the caches that models are downloaded to).
    is_parsed = parser.parse(model.proto.SerializeToString(), str(model.path.absolute()))
    try:
        complaints = _complaints(parser, model)
    except UnicodeDecodeError:
        raise BuildRefused(f"{model.path.name}: wanted an ONNX model, got a damaged one: a name in it is no UTF-8") from None
    if not is_parsed or complaints:
        raise _refusal(model, complaints)
    inputs = tuple(_described(network.get_input(i), model.inputs) for i in range(network.num_inputs))
    outputs = tuple(_described(network.get_output(i), model.outputs) for i in range(network.num_outputs))
    if not outputs:
        raise BuildRefused(f"{model.path.name}: the parser took it and made a network without outputs")
    return ParsedNetwork(network, parser, inputs, outputs, _kinds(network), _changed_types(inputs, outputs))


def _kinds(network: Any) -> Mapping[str, int]:
    return dict(Counter(network.get_layer(index).type.name for index in range(network.num_layers)).most_common())


def _creation_flags(trt: Any) -> int:
    """Strongly typed: precision is what the file says. Version 10 has to be asked for it, the others know nothing else."""
    flag = getattr(getattr(trt, "NetworkDefinitionCreationFlag", None), "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _complaints(parser: Any, model: OnnxModel) -> list[_Complaint]:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    found = [_Complaint(int(error.node()), _name(error, model), error.node_operator(), _short(error.desc())) for error in errors]
    return [complaint for complaint in found if not is_stray(complaint.text)]


def _name(error: Any, model: OnnxModel) -> str:
    """A node's name; where it has none, that of its first output: nodes inside of branches are counted from the start again."""
    nodes = model.proto.graph.node
    index = int(error.node())
    if error.node_name() or not 0 <= index < len(nodes) or nodes[index].op_type != error.node_operator():
        return str(error.node_name())
    return str(nodes[index].output[0])


def _refusal(model: OnnxModel, complaints: list[_Complaint]) -> BuildRefused:
    unique = list({(item.index, item.name, item.operator): item for item in complaints}.values())
    lines = [item.line() for item in unique[:_LISTED]]
    if len(unique) > _LISTED:
        lines.append(f"  … and {len(unique) - _LISTED} more")
    if fault := checker_says(model.path):
        lines.append(f"  the file is no valid ONNX model: {_short(fault)}")
    operators = sorted({item.operator for item in unique if item.operator})
    if not operators:
        return BuildRefused(f"{model.path.name}: TensorRT cannot read it", lines)
    nodes = "1 node" if len(unique) == 1 else f"{len(unique)} nodes"
    return BuildRefused(f"{model.path.name}: TensorRT cannot take {nodes} ({', '.join(operators)})", lines)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1] + "…"


def _described(tensor: Any, declared: tuple[GraphTensor, ...]) -> TensorInfo:
    named = {item.name: item for item in declared}.get(tensor.name)
    shape = tuple(int(size) for size in tensor.shape)
    names = named.dimension_names if named is not None and len(named.dimension_names) == len(shape) else ()
    return TensorInfo(tensor.name, tensor.dtype.name, named.datatype if named is not None else "", shape, names)


_SAME_TYPE = {"FLOAT16": "HALF", "BFLOAT16": "BF16", "FLOAT8E4M3FN": "FP8"}
"""Types that the two call by other names."""


def _changed_types(inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> tuple[str, ...]:
    """Silent changes of datatypes beside DOUBLE, of which the file's own check tells."""
    return tuple(
        f"{role} '{tensor.name}' is {tensor.onnx_datatype} in the file and {tensor.datatype} in the plan"
        for role, tensors in (("input", inputs), ("output", outputs))
        for tensor in tensors
        if tensor.onnx_datatype not in ("", "DOUBLE") and _SAME_TYPE.get(tensor.onnx_datatype, tensor.onnx_datatype) != tensor.datatype
    )
