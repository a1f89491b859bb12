"""The script of the documentation that writes trees with tensor operators: the same probabilities, and a plan instead of a refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.support.programs import ROOT

SCRIPT = ROOT / "docs" / "models" / "trees_as_tensors.py"
TABULAR = ROOT / "tests" / "data" / "tabular"
TREES = TABULAR / "boosted_trees_skl2onnx.onnx"
SPLIT = np.load(TABULAR / "breast_cancer_split.npz")


def written(trees: Path, tensors: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(trees), str(tensors)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def probabilities(path: Path, rows: Any) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {session.get_inputs()[0].name: rows})[0]


def test_trees_of_a_trained_model_give_the_same_probabilities_as_tensors(tmp_path: Path) -> None:
    tensors = tmp_path / "tensors.onnx"
    assert written(TREES, tensors).returncode == 0
    rows = np.concatenate([SPLIT["Xtr"], SPLIT["Xte"]])
    found, wanted = probabilities(tensors, rows), probabilities(TREES, rows)
    assert np.abs(found - wanted).max() < 1e-6
    assert ((found.argmax(1) == np.concatenate([SPLIT["ytr"], SPLIT["yte"]])).mean()) > 0.95
    build = [sys.executable, "-m", "tensorgate", "build", str(tensors), "-o", str(tmp_path / "1")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("transform", ["SOFTMAX", "NONE"])
def test_a_tree_of_three_classes(tmp_path: Path, transform: str) -> None:
    onnx.save(three_classes(transform, b"BRANCH_LEQ"), tmp_path / "trees.onnx")
    assert written(tmp_path / "trees.onnx", tmp_path / "tensors.onnx").returncode == 0
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [1.5, 2.0], [1.5, 2.5]], np.float32)
    found, wanted = probabilities(tmp_path / "tensors.onnx", rows), probabilities(tmp_path / "trees.onnx", rows)
    assert found == pytest.approx(wanted, abs=1e-6)
    assert list(found.argmax(1)) == [0, 0, 1, 2]


def test_what_the_script_cannot_write_is_said(tmp_path: Path) -> None:
    onnx.save(three_classes("NONE", b"BRANCH_LT"), tmp_path / "trees.onnx")
    refused = written(tmp_path / "trees.onnx", tmp_path / "tensors.onnx")
    assert (refused.returncode, refused.stderr) == (1, "nodes_modes: wanted BRANCH_LEQ, got BRANCH_LT\n")
    assert not (tmp_path / "tensors.onnx").exists()


def three_classes(transform: str, mode: bytes) -> Any:
    """x0 <= 1: the first class; else x1 <= 2: the second; else the third."""
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "probabilities"],
        domain="ai.onnx.ml",
        nodes_treeids=[0] * 5,
        nodes_nodeids=[0, 1, 2, 3, 4],
        nodes_featureids=[0, 0, 1, 0, 0],
        nodes_modes=[mode, b"LEAF", mode, b"LEAF", b"LEAF"],
        nodes_values=[1.0, 0.0, 2.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 3, 0, 0],
        nodes_falsenodeids=[2, 0, 4, 0, 0],
        class_treeids=[0, 0, 0],
        class_nodeids=[1, 3, 4],
        class_ids=[0, 1, 2],
        class_weights=[0.9, 0.8, 0.7],
        classlabels_int64s=[0, 1, 2],
        post_transform=transform,
    )
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])]
    outputs = [
        helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, ["n", 3]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=8)
