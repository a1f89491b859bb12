"""Writes a classifier of decision trees with tensor operators, which TensorRT takes: ``TreeEnsembleClassifier`` it has not.

::

    pip install onnx
    python docs/models/trees_as_tensors.py trees.onnx tensors.onnx
    tensorgate build tensors.onnx -o my_models/trees/1/

Every comparison of every tree is made at once; a leaf is reached where all comparisons on its path came out as its path says. That is a
matrix product: a path has 1 for each comparison that must hold, -1 for each that must not, and the leaf is reached where the sum is the
number of the former. The input and ``probabilities`` [rows, classes] stay; the label is left out: it is the index of the largest.

Features are gathered and compared, not multiplied: a GPU may round the factors of a product.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


@dataclass
class Paths:
    """All trees as arrays; a comparison is ``feature <= threshold``."""

    features: list[int]
    thresholds: list[float]
    leaves: list[tuple[tuple[int, int], list[tuple[int, bool]]]]
    """The (tree, node) of each leaf, and the comparisons on its path with what each must be."""

    def matrix(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """[comparisons, leaves] of 1, -1 and 0, and [leaves], the sum that says that a leaf is reached."""
        paths = np.zeros((len(self.features), len(self.leaves)), np.float32)
        sums = np.zeros(len(self.leaves), np.float32)
        for leaf, (_, path) in enumerate(self.leaves):
            for comparison, holds in path:
                paths[comparison, leaf] = 1 if holds else -1
                sums[leaf] += holds
        return paths, sums


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", type=Path, help="an ONNX file with one TreeEnsembleClassifier, as skl2onnx writes it")
    parser.add_argument("tensors", type=Path, help="the file that is written")
    arguments = parser.parse_args()
    onnx.save(with_tensors(onnx.load(arguments.trees)), arguments.tensors)


def with_tensors(model: Any) -> Any:
    """The same classifier as plain operators.

    Args:
        model: an ``onnx.ModelProto`` whose one TreeEnsembleClassifier reads the model's input, with ``<=`` in its nodes and LOGISTIC,
            SOFTMAX or NONE behind them.
    """
    node = the_classifier(model)
    table = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    paths = all_paths(table)
    scores, names = leaf_scores(table, paths)
    name, columns = node.input[0], model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    transform = table.get("post_transform", b"NONE").decode()
    if scores.shape[1] == 1 and transform != "LOGISTIC":
        raise SystemExit(f"post_transform: wanted LOGISTIC for one score and two classes, got {transform}")
    matrix, sums = paths.matrix()
    tensors = {
        "trees.features": np.array(paths.features, np.int64),
        "trees.thresholds": np.array(paths.thresholds, np.float32),
        "trees.paths": matrix,
        "trees.sums": sums,
        "trees.scores": scores,
        "trees.base": np.array(table.get("base_values", [0.0] * scores.shape[1]), np.float32),
        "trees.one": np.array(1, np.float32),
    }
    graph = helper.make_graph(
        list(operators(name, transform, is_binary=scores.shape[1] == 1)),
        "trees",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", columns])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", names])],
        [numpy_helper.from_array(value, key) for key, value in tensors.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def the_classifier(model: Any) -> Any:
    """The node that is written anew."""
    found = [node for node in model.graph.node if node.op_type == "TreeEnsembleClassifier"]
    if len(found) != 1 or found[0].input[0] != model.graph.input[0].name:
        raise SystemExit(f"wanted one TreeEnsembleClassifier that reads the model's input, got {len(found)} of them")
    return found[0]


def all_paths(table: dict[str, Any]) -> Paths:
    """Walks every tree from its root, the node 0."""
    modes = {mode.decode() for mode in table["nodes_modes"]} - {"LEAF"}
    if modes - {"BRANCH_LEQ"}:
        raise SystemExit(f"nodes_modes: wanted BRANCH_LEQ, got {', '.join(sorted(modes))}")
    places = {key: index for index, key in enumerate(zip(table["nodes_treeids"], table["nodes_nodeids"], strict=True))}
    found = Paths([], [], [])
    for tree in sorted(set(table["nodes_treeids"])):
        waiting: list[tuple[int, list[tuple[int, bool]]]] = [(0, [])]
        while waiting:
            node, path = waiting.pop()
            place = places[tree, node]
            if table["nodes_modes"][place] == b"LEAF":
                found.leaves.append(((tree, node), path))
                continue
            comparison = len(found.features)
            found.features.append(table["nodes_featureids"][place])
            found.thresholds.append(table["nodes_values"][place])
            waiting.append((table["nodes_truenodeids"][place], [*path, (comparison, True)]))
            waiting.append((table["nodes_falsenodeids"][place], [*path, (comparison, False)]))
    return found


def leaf_scores(table: dict[str, Any], paths: Paths) -> tuple[NDArray[np.float32], int]:
    """What each leaf adds to each score, [leaves, scores], and how many classes there are. Two classes may share one score."""
    classes = len(table.get("classlabels_int64s", ())) or len(table.get("classlabels_strings", ()))
    is_binary = classes == 2 and len(set(table["class_ids"])) == 1
    scores = np.zeros((len(paths.leaves), 1 if is_binary else classes), np.float32)
    places = {leaf: index for index, (leaf, _) in enumerate(paths.leaves)}
    columns = ("class_treeids", "class_nodeids", "class_ids", "class_weights")
    for tree, node, label, weight in zip(*(table[name] for name in columns), strict=True):
        scores[places[tree, node], 0 if is_binary else label] += weight
    return scores, classes


def operators(name: str, transform: str, *, is_binary: bool) -> Iterator[Any]:
    """The graph's nodes, in order."""
    yield helper.make_node("Gather", [name, "trees.features"], ["compared"], name="gather", axis=1)
    yield helper.make_node("LessOrEqual", ["compared", "trees.thresholds"], ["holds"], name="compare")
    yield helper.make_node("Cast", ["holds"], ["held"], name="held", to=TensorProto.FLOAT)
    yield helper.make_node("MatMul", ["held", "trees.paths"], ["sum"], name="paths_taken")
    yield helper.make_node("Equal", ["sum", "trees.sums"], ["is_reached"], name="reach")
    yield helper.make_node("Cast", ["is_reached"], ["reached"], name="reached", to=TensorProto.FLOAT)
    yield helper.make_node("MatMul", ["reached", "trees.scores"], ["added"], name="leaves_added")
    yield helper.make_node("Add", ["added", "trees.base"], ["raw"], name="base_added")
    if transform == "SOFTMAX":
        yield helper.make_node("Softmax", ["raw"], ["probabilities"], name="softmax", axis=1)
        return
    last = "positive" if is_binary else "probabilities"
    yield helper.make_node("Sigmoid" if transform == "LOGISTIC" else "Identity", ["raw"], [last], name="transform")
    if is_binary:
        yield helper.make_node("Sub", ["trees.one", "positive"], ["negative"], name="others")
        yield helper.make_node("Concat", ["negative", "positive"], ["probabilities"], name="both", axis=1)


if __name__ == "__main__":
    main()
