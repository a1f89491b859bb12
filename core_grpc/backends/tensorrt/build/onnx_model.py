"""The ONNX file before TensorRT sees it: read, checked for what its parser accepts silently and wrongly, and described.

The parser says yes to an empty file, to opset 99, and to inputs of DOUBLE, which become FLOAT. It takes dimensions of equal names for equal
sizes. All of that is seen here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.plan_metadata import sha256_of

_PLACEHOLDERS = frozenset({"?", "None", "none", "unk", "unknown", "-1"})
"""Names that exporters give to dimensions they know nothing of; two of them say nothing about each other."""
_QUANTISED: Mapping[int, str] = {
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "int8",
    onnx.TensorProto.FLOAT8E4M3FN: "fp8",
    onnx.TensorProto.FLOAT8E5M2: "fp8",
    onnx.TensorProto.INT4: "int4",
    onnx.TensorProto.UINT4: "int4",
}
_FLOATS: Mapping[int, str] = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
_DATATYPES: Mapping[int, str] = {number: name for name, number in onnx.TensorProto.DataType.items()}
_TYPES = frozenset(
    {"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"}
)
"""Of inputs and outputs, as far as TensorRT has them."""
_QUANTISERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of the graph."""

    name: str
    datatype: str
    """ONNX's name: ``FLOAT``, ``INT64``, …"""
    shape: tuple[int, ...]
    """-1 for what varies."""
    dimension_names: tuple[str, ...]
    """"" where a dimension has no name, or a fixed size."""

    @property
    def is_fixed(self) -> bool:
        """Whether nothing varies."""
        return -1 not in self.shape


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A checked ONNX file."""

    path: Path
    proto: Any
    """``onnx.ModelProto`` without external data. ``independent_dimensions`` may have renamed dimensions in it."""
    sha256: str
    size_bytes: int
    """Of the file and its external data."""
    external_files: tuple[str, ...]
    """External data by their places beside the file, sorted."""
    opset: int
    inputs: tuple[GraphTensor, ...]
    """Without initializers that old exporters list as inputs."""
    outputs: tuple[GraphTensor, ...]
    precision: str
    """The lowest that its weights or its quantisers have: ``fp32``, ``fp16``, ``bf16``, ``int8``, ``fp8``, ``int4``."""
    branches: tuple[str, ...]
    """Its operators with graphs inside: ``If``, ``Loop``, ``Scan``."""
    notes: tuple[str, ...]
    """What the user should know, each as one line."""


def read_model(path: Path, independent: Sequence[str] = ()) -> OnnxModel:
    """Reads and checks an ONNX file.

    Args:
        path: the file.
        independent: names of dimensions whose equal names do not mean equal sizes.

    Raises:
        BuildRefused: it is no model that TensorRT could get; the text says why.
    """
    proto = _proto(path)
    if not proto.graph.output:
        raise BuildRefused(f"{path.name}: wanted a model, got a graph without outputs")
    opset = _opset(path, proto)
    external_files = _external_files(path, proto)
    _free_zeros(proto)
    notes = _separate(proto, independent)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_tensor(path, "input", value) for value in proto.graph.input if value.name not in initializers)
    outputs = tuple(_tensor(path, "output", value) for value in proto.graph.output)
    return OnnxModel(
        path=path,
        proto=proto,
        sha256=sha256_of(path),
        size_bytes=sum(part.stat().st_size for part in (path, *(path.parent / name for name in external_files))),
        external_files=external_files,
        opset=opset,
        inputs=inputs,
        outputs=outputs,
        precision=precision_of(proto),
        branches=tuple(sorted({node.op_type for node in _nodes(proto.graph) if _has_graphs(node)})),
        notes=(*notes, *_double_notes(inputs, outputs)),
    )


def precision_of(proto: Any) -> str:
    """The lowest precision that a model's weights or quantisers have."""
    initializers = {tensor.name: tensor for graph in _graphs(proto.graph) for tensor in graph.initializer}
    # What is quantised already says its type itself; of what is quantised by the graph the zero point does.
    quantised = Counter(
        _QUANTISED.get(initializers[name].data_type, "")
        for node in _nodes(proto.graph)
        if node.op_type in _QUANTISERS
        for name in (node.input[0], *node.input[2:])
        if name in initializers
    )
    for name in ("int4", "fp8", "int8"):
        if quantised[name]:
            return name
    if any(node.op_type in _QUANTISERS for node in _nodes(proto.graph)):
        return "int8"
    # Some exporters write weights as nodes.
    constants = [item.t for node in _nodes(proto.graph) if node.op_type == "Constant" for item in node.attribute if item.name == "value"]
    floats = Counter(_FLOATS.get(tensor.data_type, "") for tensor in (*initializers.values(), *constants) if _count(tensor.dims) > 1)
    return "fp16" if floats["fp16"] else "bf16" if floats["bf16"] else "fp32"


def shared_names(inputs: Sequence[GraphTensor]) -> Mapping[str, tuple[tuple[str, int], ...]]:
    """The names that more than one dimension of the inputs has: TensorRT gives all of them one size. By name: (input, axis)."""
    places: dict[str, list[tuple[str, int]]] = {}
    for tensor in inputs:
        for axis, name in enumerate(tensor.dimension_names):
            if name:
                places.setdefault(name, []).append((tensor.name, axis))
    return {name: tuple(found) for name, found in places.items() if len(found) > 1}


def _proto(path: Path) -> Any:
    if not path.exists():
        raise BuildRefused(f"{path}: there is no such file")
    if not path.is_file():
        raise BuildRefused(f"{path}: wanted an ONNX file, got a directory or something else")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BuildRefused(f"{path}: cannot be read: {error.strerror}") from None
    if not content:
        raise BuildRefused(f"{path.name} is empty (0 bytes)")
    if content.startswith(b"version https://git-lfs"):
        raise BuildRefused(f"{path.name} is a Git LFS pointer, not the model: run `git lfs pull` where it came from")
    if content.startswith((b"vtrt", b"ftrt")):
        raise BuildRefused(f"{path.name} is a TensorRT plan already: `tensorgate inspect` shows it")
    try:
        proto = onnx.load_model_from_string(content)
    except DecodeError:
        raise BuildRefused(f"{path.name}: wanted an ONNX model, got something else (or half of one)") from None
    if not proto.graph.node and not proto.graph.output:
        raise BuildRefused(f"{path.name}: wanted an ONNX model, got one without a graph")
    return proto


def _opset(path: Path, proto: Any) -> int:
    versions = {item.domain: int(item.version) for item in proto.opset_import}
    # A model of the domain ai.onnx.ml alone imports no other; its nodes are then refused one by one, by name.
    opset = versions.get("", versions.get("ai.onnx", 1))
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise BuildRefused(
            f"{path.name}: opset {opset}: wanted at most {newest}, the newest that the installed onnx {onnx.__version__} knows"
        )
    return opset


def _external_files(path: Path, proto: Any) -> tuple[str, ...]:
    """The files of external data, checked. The parser's own text for what is wrong with them does not name the file."""
    tensors = [tensor for graph in _graphs(proto.graph) for tensor in graph.initializer if uses_external_data(tensor)]
    wanted = [(tensor.name, ExternalDataInfo(tensor)) for tensor in tensors]
    files = {info.location for _, info in wanted}
    outside = sorted(name for name in files if Path(name).is_absolute() or ".." in Path(name).parts)
    if outside:
        raise BuildRefused(
            f"{path.name}: {len(outside)} of its files of external data are outside of its directory, where ONNX allows none",
            [f"  {name}: move it into the directory, and write its new place into the model" for name in outside],
        )
    missing = sorted(name for name in files if not (path.parent / name).is_file())
    if missing:
        raise BuildRefused(
            f"{path.name}: {len(missing)} of its files of external data are missing beside it", [f"  {name}" for name in missing]
        )
    sizes = {name: (path.parent / name).stat().st_size for name in files}
    for tensor, info in wanted:
        end = (info.offset or 0) + (info.length or 0)
        if end > sizes[info.location]:
            raise BuildRefused(
                f"{path.name}: {info.location} has {sizes[info.location]} bytes, and initializer '{tensor}' ends at byte {end}: "
                "the file is another's, or half of itself"
            )
    return tuple(sorted(files))


def _tensor(path: Path, role: str, value: Any) -> GraphTensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise BuildRefused(f"{path.name}: {role} '{value.name}': wanted a tensor, got {(kind or 'nothing').removesuffix('_type')}")
    number = value.type.tensor_type.elem_type
    datatype = _DATATYPES.get(number, f"of datatype {number}")
    if datatype == "STRING":
        raise BuildRefused(
            f"{path.name}: {role} '{value.name}' is of strings, and TensorRT has none",
            ["  Cut the model behind the operators that read text, and serve them as a step before it (docs/pipelines.md)."],
        )
    if datatype not in _TYPES:
        raise BuildRefused(f"{path.name}: {role} '{value.name}' is {datatype}, and TensorRT has no such type")
    if role == "input" and not value.type.tensor_type.HasField("shape"):
        raise BuildRefused(f"{path.name}: input '{value.name}' has no shape: TensorRT has to know how many dimensions there are")
    dimensions = value.type.tensor_type.shape.dim
    shape = tuple(int(item.dim_value) if item.HasField("dim_value") else -1 for item in dimensions)
    names = tuple(item.dim_param if item.HasField("dim_param") else "" for item in dimensions)
    return GraphTensor(value.name, datatype, shape, names)


def _free_zeros(proto: Any) -> None:
    """Some exporters write 0 for what varies, and TensorRT takes it for a size. Negative numbers are no sizes either."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for item in _dimensions(value):
            if item.HasField("dim_value") and item.dim_value <= 0:
                item.ClearField("dim_value")


def _separate(proto: Any, independent: Sequence[str]) -> list[str]:
    """Gives every dimension of one of these names, and of names that say nothing, a name of its own; tells which."""
    seen = Counter(item.dim_param for value in proto.graph.input for item in _dimensions(value) if item.dim_param)
    known = {name for name, count in seen.items() if count}
    unknown = [name for name in independent if name not in known]
    if unknown:
        raise BuildRefused(
            f"--independent-dims: no dimension of an input is named {unknown[0]}; there are {', '.join(sorted(known)) or 'none'}"
        )
    names = {name for name, count in seen.items() if name in independent or (name in _PLACEHOLDERS and count > 1)}
    if not names:
        return []
    for value in proto.graph.input:
        for axis, item in enumerate(_dimensions(value)):
            if item.dim_param in names:
                item.dim_param = f"{value.name}.{axis}"
    # What was inferred with the old names would contradict the new ones.
    for value in (*proto.graph.output, *proto.graph.value_info):
        for item in _dimensions(value):
            if item.dim_param in names:
                item.ClearField("dim_param")
    return [f"dimensions named '{name}' are taken as independent of each other" for name in sorted(names)]


def checker_says(path: Path) -> str:
    """Why a file is no valid ONNX model, in one line; empty where it is one, or the checker cannot tell."""
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        return " ".join(str(error).split("==> Context", maxsplit=1)[0].split())
    except UnicodeDecodeError:
        return "a name in it is no UTF-8"
    return ""


def _double_notes(inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> Iterator[str]:
    for role, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            if tensor.datatype == "DOUBLE":
                yield f"{role} '{tensor.name}' is DOUBLE in the file and FLOAT in the plan: TensorRT computes no doubles; callers send FP32"


def _dimensions(value: Any) -> Sequence[Any]:
    dimensions: Sequence[Any] = value.type.tensor_type.shape.dim
    return dimensions


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and the graphs inside its nodes (If, Loop, Scan)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def _nodes(graph: Any) -> Iterator[Any]:
    for inner in _graphs(graph):
        yield from inner.node


def _has_graphs(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _count(dimensions: Sequence[int]) -> int:
    product = 1
    for size in dimensions:
        product *= size
    return product
