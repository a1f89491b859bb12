"""ONNX Runtime: broken files, refused values, odd models; every text fit for a caller."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from core_grpc.backends.base import ON_CPU, LoadedModel, ModelSource
from core_grpc.backends.onnxruntime.backend import OnnxRuntimeBackend
from core_grpc.backends.onnxruntime.sessions import session_from_file
from core_grpc.errors import BackendFailed, InvalidArgument, ModelLoadFailed
from core_grpc.types import Datatype, TensorSpec
from tests.support.models import onnx_model, write_gather, write_id, write_nonzero, write_onnx, write_opt, write_scalars


def load(directory: Path, *declared: TensorSpec) -> LoadedModel:
    return OnnxRuntimeBackend().load(ModelSource("m", "1", directory, {}, declared))


def good_bytes(tmp_path: Path) -> bytes:
    write_gather(tmp_path / "good")
    return (tmp_path / "good" / "gather" / "1" / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("missing", "is missing"),
        ("empty", "is empty"),
        ("random", "is not a model"),
        ("half", "is not a model"),
        ("lfs", "git lfs pull"),
        ("directory", "wanted a file, got a directory"),
        ("text", "is not an ONNX model"),
    ],
)
def test_broken_file_is_refused_in_one_helpful_line(tmp_path: Path, kind: str, text: str) -> None:
    """ENG-02."""
    content = good_bytes(tmp_path)
    files = {
        "empty": b"",
        "random": os.urandom(1000),
        "half": content[: len(content) // 2],
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        "text": b"<html>location</html>",
    }
    if kind == "directory":
        (tmp_path / "model.onnx").mkdir()
    elif kind != "missing":
        (tmp_path / "model.onnx").write_bytes(files[kind])
    with pytest.raises(ModelLoadFailed, match=text) as caught:
        load(tmp_path)
    assert "model.onnx" in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert "/" not in caught.value.message.replace("https://", "")


def test_unsupported_operator_is_named_without_paths(tmp_path: Path) -> None:
    shape = (Datatype.FP32, (1,))
    model = onnx_model([helper.make_node("NoSuchOperator", ["X"], ["Y"])], {"X": shape}, {"Y": shape})
    with pytest.raises(ModelLoadFailed, match="NoSuchOperator") as caught:
        load(write_onnx(tmp_path, "m", model))
    assert str(tmp_path) not in caught.value.message


def test_types_that_the_protocol_cannot_carry_are_named(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["X"], ["Y"])],
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [1])],
        [helper.make_tensor_sequence_value_info("Y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(ModelLoadFailed, match=r"output 'Y' has the type seq\(tensor\(float\)\)"):
        load(write_onnx(tmp_path, "m", model))


def test_refused_value_is_the_callers_and_has_the_engines_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gather(tmp_path)
    instance = load(tmp_path / "gather" / "1").create_instance()
    with pytest.raises(InvalidArgument, match="idx=99 must be within the inclusive range") as caught:
        instance.execute({"I": np.array([[99]])})
    assert not re.search(r"/|::", caught.value.message)
    assert instance.execute({"I": np.array([[3]])})["Y"].tolist() == [[30.0]]
    assert capfd.readouterr().err == "", "the engine must not write a line for every request it refuses"


def test_failing_run_has_a_text_without_source_locations(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["X", "S"], ["Y"])
    model = onnx_model([node], {"X": (Datatype.FP32, ("n",)), "S": (Datatype.INT64, (2,))}, {"Y": (Datatype.FP32, ("a", "b"))})
    instance = load(write_onnx(tmp_path, "m", model)).create_instance()
    with pytest.raises(BackendFailed, match="cannot be reshaped") as caught:
        instance.execute({"X": np.zeros(4, np.float32), "S": np.array([3, 3])})
    assert not re.search(r"/|::|\.h:", caught.value.message)


def test_bytes_that_are_not_text_are_refused_by_name(tmp_path: Path) -> None:
    name = write_id(tmp_path, Datatype.BYTES)
    instance = load(tmp_path / name / "1").create_instance()
    with pytest.raises(InvalidArgument, match="input 'X' element 1: this model takes UTF-8 text, got 3 bytes"):
        instance.execute({"X": np.array([[b"ok", b"\xff\xfe\xfd"]], dtype=object)})


def test_optional_input_is_offered_when_declared(tmp_path: Path) -> None:
    """WIRE-19: an initializer that is also an input."""
    write_opt(tmp_path)
    directory = tmp_path / "opt" / "1"
    assert [spec.name for spec in load(directory).inputs] == ["A"]
    model = load(directory, TensorSpec("B", Datatype.FP32, (4,)))
    assert [(spec.name, spec.optional) for spec in model.inputs] == [("A", False), ("B", True)]
    instance, ones = model.create_instance(), np.ones(4, np.float32)
    assert instance.execute({"A": ones})["Y"].tolist() == [101.0] * 4
    assert instance.execute({"A": ones, "B": ones})["Y"].tolist() == [2.0] * 4
    assert instance.execute({"A": ones})["Y"].tolist() == [101.0] * 4, "B of the call before must not stay"


def test_output_size_that_depends_on_the_data(tmp_path: Path) -> None:
    """ENG-08."""
    write_nonzero(tmp_path)
    instance = load(tmp_path / "nonzero" / "1").create_instance()
    for count in (0, 1, 1000, 100_000, 1, 0):
        got = instance.execute({"X": np.ones(count, np.float32)})["Y"]
        assert got.shape == (1, count)
        assert got.dtype == np.int64
        assert got.tolist()[0] == list(range(count))


def test_rank_zero(tmp_path: Path) -> None:
    write_scalars(tmp_path)
    total = load(tmp_path / "scalar" / "1").create_instance().execute({"X": np.array([1, 2], np.float32)})["Y"]
    assert (total.shape, float(total)) == ((), 3.0)
    same = load(tmp_path / "scalar_in" / "1").create_instance().execute({"X": np.array(5, np.float32)})["Y"]
    assert (same.shape, float(same)) == ((), 5.0)


@pytest.mark.parametrize(
    ("shape", "padding", "threads", "expected"),
    [
        (("batch", 64), 0, 0, 1),
        ((3, 80, 160), 0, 0, 1),
        (("batch", 64), 0, 3, 3),
        (("batch", 64), (1 << 20) + 1, 0, 0),
        (("batch", 3, 224, 224), 0, 0, 0),
        (("batch", "n"), 0, 0, 0),
    ],
    ids=["small", "small without batch", "declared", "large weights beside it", "large rows", "variable rows"],
)
def test_threads_of_small_and_other_models(tmp_path: Path, shape: tuple[int | str, ...], padding: int, threads: int, expected: int) -> None:
    model = onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": (Datatype.FP32, shape)}, {"Y": (Datatype.FP32, shape)})
    directory = write_onnx(tmp_path, "m", model)
    (directory / "weights.bin").write_bytes(bytes(padding))
    session = session_from_file(directory / "model.onnx", ON_CPU, threads)
    assert session.get_session_options().intra_op_num_threads == expected


@pytest.mark.parametrize("threads", [-1, True, "two", 5000])
def test_wrong_thread_count_is_refused(tmp_path: Path, threads: object) -> None:
    write_gather(tmp_path)
    with pytest.raises(ModelLoadFailed, match="intra_op_threads: wanted 0 to 1024"):
        OnnxRuntimeBackend().load(ModelSource("m", "1", tmp_path / "gather" / "1", {"intra_op_threads": threads}))
