"""Model repositories for tests: small ONNX graphs made on the spot, and identity models. No file is shared with the demo."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from core_grpc.types import Datatype

ONNX_TYPES: Mapping[Datatype, int] = {
    Datatype.BOOL: TensorProto.BOOL,
    Datatype.INT8: TensorProto.INT8,
    Datatype.INT16: TensorProto.INT16,
    Datatype.INT32: TensorProto.INT32,
    Datatype.INT64: TensorProto.INT64,
    Datatype.UINT8: TensorProto.UINT8,
    Datatype.UINT16: TensorProto.UINT16,
    Datatype.UINT32: TensorProto.UINT32,
    Datatype.UINT64: TensorProto.UINT64,
    Datatype.FP16: TensorProto.FLOAT16,
    Datatype.BF16: TensorProto.BFLOAT16,
    Datatype.FP32: TensorProto.FLOAT,
    Datatype.FP64: TensorProto.DOUBLE,
    Datatype.BYTES: TensorProto.STRING,
}

Shape = Sequence[int | str]
Values = Mapping[str, tuple[Datatype, Shape]]


def onnx_model(
    nodes: Sequence[Any], inputs: Values, outputs: Values, initializers: Sequence[Any] = (), default_inputs: Sequence[str] = ()
) -> Any:
    """A ModelProto; initializers named in ``default_inputs`` are graph inputs too, so that callers may override them."""
    infos = [helper.make_tensor_value_info(name, ONNX_TYPES[datatype], list(shape)) for name, (datatype, shape) in inputs.items()]
    infos += [helper.make_tensor_value_info(item.name, item.data_type, item.dims) for item in initializers if item.name in default_inputs]
    results = [helper.make_tensor_value_info(name, ONNX_TYPES[datatype], list(shape)) for name, (datatype, shape) in outputs.items()]
    graph = helper.make_graph(list(nodes), "graph", infos, results, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def write_onnx(repository: Path, name: str, model: Any, config: str = "", version: str = "1") -> Path:
    """Writes ``<repository>/<name>/<version>/model.onnx`` and model.toml; returns the version's directory."""
    directory = repository / name / version
    directory.mkdir(parents=True)
    onnx.save(model, directory / "model.onnx")
    if config:
        (repository / name / "model.toml").write_text(config, encoding="utf-8")
    return directory


def write_identity(repository: Path, name: str, inputs: Mapping[str, tuple[str, Sequence[int]]], config: str = "") -> Path:
    """An identity-backend model; ``inputs`` is name to datatype and full shape. ``config`` is put before the inputs' tables."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    tables = "".join(f'[input.{key}]\ndatatype = "{datatype}"\nshape = {list(shape)}\n' for key, (datatype, shape) in inputs.items())
    (repository / name / "model.toml").write_text(f'backend = "identity"\n{config}\n{tables}', encoding="utf-8")
    return directory


def write_id(repository: Path, datatype: Datatype, config: str = "") -> str:
    """``id_<dtype>``: ONNX Identity X -> Y, [batch, n], every datatype of the protocol; returns its name."""
    name = f"id_{datatype.lower()}"
    shape = (datatype, ("batch", "n"))
    write_onnx(repository, name, onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": shape}, {"Y": shape}), config)
    return name


def write_plus(repository: Path, version: int, name: str = "plus") -> None:
    """``plus``: Y = X + version, FP32 [batch, 1], so that an answer tells who gave it."""
    shape = (Datatype.FP32, ("batch", 1))
    constant = helper.make_tensor("C", TensorProto.FLOAT, [1, 1], [float(version)])
    model = onnx_model([helper.make_node("Add", ["X", "C"], ["Y"])], {"X": shape}, {"Y": shape}, [constant])
    write_onnx(repository, name, model, version=str(version))


def write_addsub_i32(repository: Path, name: str = "addsub_i32", config: str = "") -> None:
    """``addsub_i32``: INPUT0, INPUT1 INT32 [batch, 16] -> OUTPUT0 sum, OUTPUT1 difference."""
    shape = (Datatype.INT32, ("batch", 16))
    nodes = [helper.make_node(op, ["INPUT0", "INPUT1"], [out]) for op, out in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))]
    model = onnx_model(nodes, {"INPUT0": shape, "INPUT1": shape}, {"OUTPUT0": shape, "OUTPUT1": shape})
    write_onnx(repository, name, model, config)


def write_div_fp32(repository: Path) -> None:
    """``div_fp32``: Y = A / B, FP32 [batch, n]."""
    shape = (Datatype.FP32, ("batch", "n"))
    write_onnx(repository, "div_fp32", onnx_model([helper.make_node("Div", ["A", "B"], ["Y"])], {"A": shape, "B": shape}, {"Y": shape}))


def write_slow_fp32(repository: Path, config: str = "", trips: int = 800) -> None:
    """``slow_fp32``: identity behind a Loop of MatMul; about half a second a run at 800 trips on one busy core."""
    size = 256
    square = (TensorProto.FLOAT, [size, size])
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state_in", "W"], ["state_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_in", *square),
        ],
        [helper.make_tensor_value_info("go_out", TensorProto.BOOL, []), helper.make_tensor_value_info("state_out", *square)],
    )
    nodes = [
        helper.make_node("Loop", ["M", "go", "W"], ["spent"], body=body),
        helper.make_node("ReduceSum", ["spent"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["X", "nothing"], ["Y"]),
    ]
    initializers = [
        helper.make_tensor("M", TensorProto.INT64, [], [trips]),
        helper.make_tensor("go", TensorProto.BOOL, [], [True]),
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("W", *square, np.eye(size, dtype=np.float32).ravel()),
    ]
    shape = (Datatype.FP32, ("batch", "n"))
    write_onnx(repository, "slow_fp32", onnx_model(nodes, {"X": shape}, {"Y": shape}, initializers), config)


def write_gather(repository: Path, config: str = "") -> None:
    """``gather``: Y = table of 10 FP32 (0, 10, … 90) at the index I, INT64 [batch, 1]; an index outside fails at run time."""
    table = helper.make_tensor("T", TensorProto.FLOAT, [10], [10.0 * i for i in range(10)])
    model = onnx_model(
        [helper.make_node("Gather", ["T", "I"], ["Y"])],
        {"I": (Datatype.INT64, ("batch", 1))},
        {"Y": (Datatype.FP32, ("batch", 1))},
        [table],
    )
    write_onnx(repository, "gather", model, config)


def write_nonzero(repository: Path) -> None:
    """``nonzero``: NonZero(X [n]) -> INT64 [1, count]; the output's size depends on the data."""
    model = onnx_model(
        [helper.make_node("NonZero", ["X"], ["Y"])], {"X": (Datatype.FP32, ("n",))}, {"Y": (Datatype.INT64, ("rank", "count"))}
    )
    write_onnx(repository, "nonzero", model)


def write_scalars(repository: Path) -> None:
    """``scalar``: ReduceSum to rank 0; ``scalar_in``: Identity of an input with shape []."""
    nodes = [helper.make_node("ReduceSum", ["X"], ["Y"], keepdims=0)]
    write_onnx(repository, "scalar", onnx_model(nodes, {"X": (Datatype.FP32, ("n",))}, {"Y": (Datatype.FP32, ())}))
    identity = onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": (Datatype.FP32, ())}, {"Y": (Datatype.FP32, ())})
    write_onnx(repository, "scalar_in", identity)


def write_big_out(repository: Path) -> None:
    """``big_out``: N INT64 [1] -> FP32 [N] filled with N."""
    nodes = [
        helper.make_node("Cast", ["N"], ["value"], to=TensorProto.FLOAT),
        helper.make_node("Expand", ["value", "N"], ["Y"]),
    ]
    write_onnx(
        repository, "big_out", onnx_model(nodes, {"N": (Datatype.INT64, (1,))}, {"Y": (Datatype.FP32, ("n",))}), "[warmup]\ncount = 0\n"
    )


def write_opt(repository: Path) -> None:
    """``opt``: Y = A + B, FP32 [4]; B may be left out and is then 100."""
    default = helper.make_tensor("B", TensorProto.FLOAT, [4], [100.0] * 4)
    vector = (Datatype.FP32, (4,))
    model = onnx_model([helper.make_node("Add", ["A", "B"], ["Y"])], {"A": vector}, {"Y": vector}, [default], default_inputs=["B"])
    write_onnx(repository, "opt", model, '[input.B]\ndatatype = "FP32"\nshape = [4]\n')


def write_probs(repository: Path) -> None:
    """``probs``: Identity FP32 [batch, 4] -> scores with labels cat, dog, owl, elk."""
    shape = (Datatype.FP32, ("batch", 4))
    model = onnx_model([helper.make_node("Identity", ["X"], ["scores"])], {"X": shape}, {"scores": shape})
    write_onnx(repository, "probs", model, '[output.scores]\nlabels = "labels.txt"\n')
    (repository / "probs" / "labels.txt").write_text("cat\ndog\nowl\nelk\n", encoding="utf-8")


def write_nobatch(repository: Path, config: str = "") -> None:
    """``nobatch``: declares a batch and sums over it, so its output has one row whatever came in.

    Compress keeps that one row and hides from shape inference that there is only one.
    """
    shape = (Datatype.FP32, ("batch", 4))
    constants = [helper.make_tensor("axes", TensorProto.INT64, [1], [0]), helper.make_tensor("keep", TensorProto.BOOL, [1], [True])]
    nodes = [
        helper.make_node("ReduceSum", ["X", "axes"], ["sum"], keepdims=1),
        helper.make_node("Compress", ["sum", "keep"], ["Y"], axis=0),
    ]
    write_onnx(repository, "nobatch", onnx_model(nodes, {"X": shape}, {"Y": shape}, constants), config)


def write_badload(repository: Path) -> None:
    """``badload``: 1 KB of random bytes as model.onnx."""
    directory = repository / "badload" / "1"
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(os.urandom(1024))
