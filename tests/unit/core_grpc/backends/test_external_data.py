"""SEC-03: a model cannot make the server read somebody else's file and answer with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from core_grpc.backends.base import ModelSource
from core_grpc.backends.onnxruntime.backend import OnnxRuntimeBackend
from core_grpc.backends.onnxruntime.external_data import check_external_data
from core_grpc.backends.onnxruntime.sessions import session_from_file
from core_grpc.errors import ModelLoadFailed
from core_grpc.types import Datatype
from tests.support.models import onnx_model

SECRET = b"SECRETSECRETSECR"
WEIGHTS = bytes(range(16))


def external_tensor(location: str, name: str = "W", length: int = 16, offset: int = 0) -> Any:
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A version directory with every trap in it."""
    (tmp_path / "secret").write_bytes(SECRET)
    directory = tmp_path / "model" / "1"
    (directory / "sub").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(WEIGHTS)
    (directory / "sub" / "weights.bin").write_bytes(WEIGHTS)
    (directory / "link").symlink_to(tmp_path / "secret")
    (directory / "linked").symlink_to(tmp_path, target_is_directory=True)
    (directory / "hard").hardlink_to(tmp_path / "secret")
    return directory


def write(directory: Path, tensor: Any) -> None:
    model = onnx_model([helper.make_node("Identity", ["W"], ["Y"])], {}, {"Y": (Datatype.UINT8, (16,))}, [tensor])
    (directory / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("location", ["weights.bin", "sub/weights.bin", "./weights.bin"])
def test_files_beside_the_model_load(directory: Path, location: str) -> None:
    write(directory, external_tensor(location))
    instance = OnnxRuntimeBackend().load(ModelSource("m", "1", directory)).create_instance()
    assert instance.execute({})["Y"].tobytes() == WEIGHTS


@pytest.mark.parametrize(
    "location",
    [
        "../../secret",
        "sub/../../../secret",
        "/etc/hostname",
        "link",
        "linked/secret",
        "hard",
        "missing",
        "",
        "sub",
        "C:\\x",
        "..\\x",
        "a\0b",
    ],
)
def test_everything_else_is_refused(directory: Path, location: str) -> None:
    write(directory, external_tensor(location))
    with pytest.raises(ModelLoadFailed, match=r"external data at .* is refused") as caught:
        OnnxRuntimeBackend().load(ModelSource("m", "1", directory))
    assert "SECRET" not in caught.value.message
    assert str(directory) not in caught.value.message


@pytest.mark.parametrize(("length", "offset"), [(10**12, 0), (16, 10**12), (16, -1), (16, 1)])
def test_lying_sizes_are_refused(directory: Path, length: int, offset: int) -> None:
    write(directory, external_tensor("weights.bin", length=length, offset=offset))
    with pytest.raises(ModelLoadFailed) as caught:
        OnnxRuntimeBackend().load(ModelSource("m", "1", directory))
    assert str(directory) not in caught.value.message


def hidden_in_constant() -> Any:
    return [helper.make_node("Constant", [], ["W"], value=external_tensor("../../secret"))], [], []


def hidden_in_subgraph() -> Any:
    result = [helper.make_tensor_value_info("r", TensorProto.UINT8, [16])]
    body = helper.make_graph([helper.make_node("Identity", ["E"], ["r"])], "branch", [], result, [external_tensor("../../secret", "E")])
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    return [helper.make_node("If", ["c"], ["W"], then_branch=body, else_branch=body)], [condition], []


def hidden_in_function() -> Any:
    constant = helper.make_node("Constant", [], ["r"], value=external_tensor("../../secret"))
    function = helper.make_function("own", "Get", [], ["r"], [constant], [helper.make_opsetid("", 17)])
    return [helper.make_node("Get", [], ["W"], domain="own")], [], [function]


@pytest.mark.parametrize("hide", [hidden_in_constant, hidden_in_subgraph, hidden_in_function])
def test_tensors_are_found_wherever_they_hide(directory: Path, hide: Any) -> None:
    nodes, initializers, functions = hide()
    model = onnx_model([*nodes, helper.make_node("Identity", ["W"], ["Y"])], {}, {"Y": (Datatype.UINT8, (16,))}, initializers)
    model.functions.extend(functions)
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadFailed, match=r"external data at '\.\./\.\./secret' is refused"):
        check_external_data(directory / "model.onnx")


def _replaced(path: Path) -> None:
    (path.parent / "new").write_bytes(path.read_bytes())
    (path.parent / "new").replace(path)


def _linked(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("model.onnx", lambda path: path.write_bytes(path.read_bytes() + b"more"), r"model.onnx changed while it was read"),
        ("model.onnx", _replaced, r"model.onnx changed while it was read"),
        ("model.onnx", Path.unlink, r"model.onnx changed while it was read"),
        ("weights.bin", _replaced, r"weights.bin changed while it was read"),
        ("weights.bin", _linked, r"external data at 'weights.bin' is refused: it is or passes through a symbolic link"),
        ("weights.bin", Path.unlink, r"external data at 'weights.bin' is refused: there is no such file"),
    ],
)
def test_a_file_that_changes_between_check_and_use(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Path], object], reason: str
) -> None:
    write(directory, external_tensor("weights.bin"))

    def and_then_changed(*given: Any) -> Any:
        session = session_from_file(*given)
        change(directory / name)
        return session

    monkeypatch.setattr("core_grpc.backends.onnxruntime.backend.session_from_file", and_then_changed)
    with pytest.raises(ModelLoadFailed, match=reason):
        OnnxRuntimeBackend().load(ModelSource("m", "1", directory))


def test_the_word_alone_is_harmless(directory: Path) -> None:
    shape = (Datatype.FP32, (1,))
    model = onnx_model([helper.make_node("Identity", ["location"], ["Y"])], {"location": shape}, {"Y": shape})
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    instance = OnnxRuntimeBackend().load(ModelSource("m", "1", directory)).create_instance()
    assert instance.execute({"location": np.ones(1, np.float32)})["Y"].tolist() == [1.0]
