"""The models that Triton's public example clients expect, made on the spot: ``python -m tests.support.triton_examples DIRECTORY``.

Two of the clients count the repository's models: ``simple_grpc_model_control.py`` wants eight, those of ``--without simple_dyna_sequence
--without simple_string_dyna_sequence``; ``simple_http_model_control.py`` wants seven: ``--without repeat_int32`` as well.

Their semantics are those of the model repository in Triton's ``docs/examples``; the files are our own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from core_grpc.pipelines.step import Step
from core_grpc.types import Datatype
from tests.support.models import Values, onnx_model, write_identity, write_onnx
from tests.support.pipelines import write_pipeline
from tests.support.python_models import write_repeat

_BATCHED = "max_batch_size = 8\n"


def write_examples(repository: Path, without: Collection[str] = ()) -> None:
    """Every model, or all but some."""
    for name, write in _EXAMPLES.items():
        if name not in without:
            write(repository, name)


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, list(inputs), [output], **attributes)


def _write(repository: Path, name: str, nodes: Sequence[Any], inputs: Values, outputs: Values, *, config: str = "") -> None:
    write_onnx(repository, name, onnx_model(nodes, inputs, outputs), _BATCHED + config)


def _write_addsub(repository: Path, name: str, datatype: Datatype) -> None:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1; INT8 and decimal strings by way of INT32."""
    shape = (datatype, ("batch", 16))
    wire_type = {Datatype.INT32: TensorProto.INT32, Datatype.INT8: TensorProto.INT8, Datatype.BYTES: TensorProto.STRING}[datatype]
    nodes = [_node("Cast", [f"INPUT{i}"], f"number{i}", to=TensorProto.INT32) for i in (0, 1)]
    for kind, i in (("Add", 0), ("Sub", 1)):
        nodes += [_node(kind, ["number0", "number1"], f"result{i}"), _node("Cast", [f"result{i}"], f"OUTPUT{i}", to=wire_type)]
    # Warm-up would make a number of an empty string.
    config = "[warmup]\ncount = 0\n" if datatype is Datatype.BYTES else ""
    _write(repository, name, nodes, {"INPUT0": shape, "INPUT1": shape}, {"OUTPUT0": shape, "OUTPUT1": shape}, config=config)


def _write_identity(repository: Path, name: str) -> None:
    """OUTPUT0 = INPUT0. Not ONNX: its strings are UTF-8, and clients send any bytes."""
    write_identity(repository, name, {"INPUT0": ("BYTES", [-1, -1])}, _BATCHED + '[identity]\noutputs = { OUTPUT0 = "INPUT0" }\n')


def _write_sequence(repository: Path, name: str) -> None:
    """OUTPUT = (INPUT + START) x READY."""
    one = (Datatype.INT32, ("batch", 1))
    nodes = [_node("Add", ["INPUT", "START"], "sum"), _node("Mul", ["sum", "READY"], "OUTPUT")]
    config = '[sequence]\nmax_idle_ms = 5000\nstart = "START"\nready = "READY"\n'
    _write(repository, name, nodes, {"INPUT": one, "START": one, "READY": one}, {"OUTPUT": one}, config=config)


def _write_dyna_sequence(repository: Path, name: str) -> None:
    """OUTPUT = (INPUT + START + END x CORRID) x READY."""
    one = (Datatype.INT32, ("batch", 1))
    nodes = [
        _node("Cast", ["CORRID"], "id", to=TensorProto.INT32),
        _node("Mul", ["END", "id"], "at_end"),
        _node("Add", ["INPUT", "START"], "sum"),
        _node("Add", ["sum", "at_end"], "total"),
        _node("Mul", ["total", "READY"], "OUTPUT"),
    ]
    inputs = {"INPUT": one, "START": one, "READY": one, "END": one, "CORRID": (Datatype.UINT64, ("batch", 1))}
    config = '[sequence]\nmax_idle_ms = 5000\nstart = "START"\nready = "READY"\nend = "END"\ncorrelation_id = "CORRID"\n'
    _write(repository, name, nodes, inputs, {"OUTPUT": one}, config=config)


def _write_string_dyna_sequence(repository: Path, name: str) -> None:
    """OUTPUT = (the INPUTs so far + END x CORRID) x READY: the server keeps the sum."""
    one = (Datatype.INT32, ("batch", 1))
    nodes = [
        _node("Cast", ["CORRID"], "id", to=TensorProto.INT32),
        _node("Mul", ["END", "id"], "at_end"),
        _node("Add", ["INPUT", "SUM"], "SUM_OUT"),
        _node("Add", ["SUM_OUT", "at_end"], "total"),
        _node("Mul", ["total", "READY"], "OUTPUT"),
    ]
    inputs = {"INPUT": one, "SUM": one, "READY": one, "END": one, "CORRID": (Datatype.BYTES, ("batch", 1))}
    controls = 'ready = "READY"\nend = "END"\ncorrelation_id = "CORRID"\n'
    config = f'[sequence]\nmax_idle_ms = 5000\n{controls}[[sequence.state]]\ninput = "SUM"\noutput = "SUM_OUT"\n'
    _write(repository, name, nodes, inputs, {"OUTPUT": one, "SUM_OUT": one}, config=config)


def _write_ensemble(repository: Path, name: str) -> None:
    """OUTPUT0 = 2 INPUT0, OUTPUT1 = 2 INPUT1, by way of sum and difference, taken twice by ``simple_part``."""
    _write_addsub(repository, "simple_part", Datatype.INT32)
    steps = [
        Step("simple_part", "", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "sum", "OUTPUT1": "difference"}),
        Step("simple_part", "1", {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
    ]
    shape = ("INT32", [-1, 16])
    tensors = [{f"{role}{i}": shape for i in (0, 1)} for role in ("INPUT", "OUTPUT")]
    write_pipeline(repository, name, steps, inputs=tensors[0], outputs=tensors[1], config=_BATCHED)


_EXAMPLES: Mapping[str, Callable[[Path, str], object]] = {
    "simple": partial(_write_addsub, datatype=Datatype.INT32),
    "simple_int8": partial(_write_addsub, datatype=Datatype.INT8),
    "simple_string": partial(_write_addsub, datatype=Datatype.BYTES),
    "simple_identity": _write_identity,
    "simple_sequence": _write_sequence,
    "simple_dyna_sequence": _write_dyna_sequence,
    "simple_string_dyna_sequence": _write_string_dyna_sequence,
    "repeat_int32": lambda repository, _name: write_repeat(repository),
    "simple_ensemble": _write_ensemble,
}


def main(arguments: Sequence[str]) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Writes the models of Triton's examples.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--without", action="append", choices=_EXAMPLES, default=[], help="leave this model out")
    options = parser.parse_args(arguments)
    write_examples(options.directory, options.without)


if __name__ == "__main__":
    main(sys.argv[1:])
