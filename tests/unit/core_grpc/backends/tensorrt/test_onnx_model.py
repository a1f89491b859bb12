"""What TensorRT's parser accepts silently and wrongly is seen before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.build.onnx_model import read_model

DIGITS = Path(__file__).parents[4] / "data" / "precision" / "digits_cnn.onnx"


def saved(directory: Path, kind: int = TensorProto.FLOAT, shape: tuple[Any, ...] = ("batch", 4), opset: int = 18, **inputs: Any) -> Path:
    """A model that gives its inputs back, in a file."""
    given = inputs or {"x": shape}
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in given]
    values = [helper.make_tensor_value_info(name, kind, dims) for name, dims in given.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kind, dims) for name, dims in given.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", values, outputs), opset_imports=[helper.make_opsetid("", opset)])
    path = directory / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_real_model_is_described() -> None:
    model = read_model(DIGITS)
    assert (model.opset, model.precision, model.notes) == (18, "fp32", ())
    assert [(item.name, item.datatype, item.shape, item.dimension_names) for item in model.inputs] == [
        ("image", "FLOAT", (-1, 1, 8, 8), ("batch", "", "", ""))
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        (b"vtrt" + bytes(60), "is a TensorRT plan already"),
        (b"\xff" * 100, "wanted an ONNX model, got something else"),
        (DIGITS.read_bytes()[:30000], "wanted an ONNX model, got something else (or half of one)"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "got one without a graph"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(BuildRefused) as refused:
        read_model(path)
    assert reason in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildRefused, match="there is no such file"):
        read_model(tmp_path / "no.onnx")
    with pytest.raises(BuildRefused, match="got a directory"):
        read_model(tmp_path)


def test_an_opset_of_the_future_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildRefused, match="opset 99: wanted at most"):
        read_model(saved(tmp_path, opset=99))


def test_doubles_become_floats_and_it_is_said(tmp_path: Path) -> None:
    notes = read_model(saved(tmp_path, TensorProto.DOUBLE)).notes
    assert notes[0].startswith("input 'x' is DOUBLE in the file and FLOAT in the plan")
    assert len(notes) == 2


def test_strings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BuildRefused, match="input 'x' is of strings"):
        read_model(saved(tmp_path, TensorProto.STRING))


@pytest.mark.parametrize(("kind", "name"), [(TensorProto.COMPLEX64, "COMPLEX64"), (TensorProto.UINT16, "UINT16"), (99, "of datatype 99")])
def test_types_that_tensorrt_has_not_are_refused_by_name(tmp_path: Path, kind: int, name: str) -> None:
    path = saved(tmp_path)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = kind
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BuildRefused, match=f"input 'x' is {name}, and TensorRT has no such type"):
        read_model(path)


def test_names_that_say_nothing_are_no_equal_sizes(tmp_path: Path) -> None:
    model = read_model(saved(tmp_path, shape=("N", 3, "?", "?")))
    assert model.notes == ("dimensions named '?' are taken as independent of each other",)
    assert model.inputs[0].dimension_names == ("N", "", "x.2", "x.3")


def test_named_dimensions_are_made_independent_when_asked(tmp_path: Path) -> None:
    path = saved(tmp_path, a=("n", 2), b=("n", 3))
    assert [item.dimension_names[0] for item in read_model(path).inputs] == ["n", "n"]
    assert [item.dimension_names[0] for item in read_model(path, ["n"]).inputs] == ["a.0", "b.0"]
    with pytest.raises(BuildRefused, match="no dimension of an input is named m; there are n"):
        read_model(path, ["m"])


def test_missing_external_data_are_named(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert read_model(path).size_bytes > path.stat().st_size
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(BuildRefused) as refused:
        read_model(path)
    assert refused.value.details == ("  weights.bin",)


@pytest.mark.parametrize(
    ("place", "wanted"), [("../weights.bin", "  ../weights.bin: move it"), ("/tmp/weights.bin", "  /tmp/weights.bin: move it")]
)
def test_external_data_outside_of_the_directory_are_named(tmp_path: Path, place: str, wanted: str) -> None:
    path = with_external_data(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = place
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BuildRefused, match="1 of its files of external data are outside of its directory") as refused:
        read_model(path)
    assert refused.value.details[0].startswith(wanted)


def test_external_data_that_are_too_short_are_named(tmp_path: Path) -> None:
    path = with_external_data(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(1000))
    with pytest.raises(BuildRefused, match=r"weights.bin has 1000 bytes, and initializer '.*' ends at byte \d+"):
        read_model(path)


def test_external_data_may_lie_in_a_directory_below(tmp_path: Path) -> None:
    path = with_external_data(tmp_path, "parts/weights.bin")
    assert read_model(path).external_files == ("parts/weights.bin",)


def with_external_data(directory: Path, place: str = "weights.bin") -> Path:
    (directory / place).parent.mkdir(exist_ok=True)
    path = directory / "model.onnx"
    onnx.save(onnx.load(DIGITS), path, save_as_external_data=True, location=place, size_threshold=0)
    return path


def test_the_precision_of_weights_that_are_nodes_is_seen(tmp_path: Path) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT16, [2], [1.0, 2.0])
    nodes = [helper.make_node("Constant", [], ["w"], value=weights), helper.make_node("Add", ["x", "w"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 2]) for name in "xy"]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:])).SerializeToString())
    assert read_model(path).precision == "fp16"
