"""Callers see one shape and the model has another: what they give and get, and which reshapes there cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from core_grpc.errors import ModelNotReady
from core_grpc.types import Datatype
from tests.support.models import onnx_model, write_identity, write_onnx
from tests.support.serving import serving

FP32 = Datatype.FP32


def write_twice(repository: Path, shape: tuple[int | str, ...], config: str) -> None:
    """``twice``: Y = X + X."""
    model = onnx_model([helper.make_node("Add", ["X", "X"], ["Y"])], {"X": (FP32, shape)}, {"Y": (FP32, shape)})
    write_onnx(repository, "twice", model, config)


def tables(shape: str, reshape: str, top: str = "max_batch_size = 8\n") -> str:
    of_tensor = f'datatype = "FP32"\nshape = {shape}\nreshape = {reshape}\n'
    return f"{top}[input.X]\n{of_tensor}[output.Y]\n{of_tensor}"


@pytest.mark.parametrize(
    ("own", "config", "given"),
    [
        (("batch",), tables("[-1, 1]", "[-1]"), (3, 1)),
        (("batch", 2, 2), tables("[-1, 4]", "[-1, 2, 2]"), (3, 4)),
        (("batch", "n", 2), tables("[-1, 2, -1]", "[-1, -1, 2]"), (2, 2, 5)),
        ((4,), tables("[2, 2]", "[4]", "max_batch_size = 0\n"), (2, 2)),
    ],
)
async def test_callers_give_and_get_their_shape(tmp_path: Path, own: tuple[int | str, ...], config: str, given: tuple[int, ...]) -> None:
    write_twice(tmp_path, own, config)
    async with serving(tmp_path) as served:
        model = served.find("twice")
        assert len(model.spec.inputs[0].shape) == len(model.spec.outputs[0].shape) == len(given)
        array = np.arange(np.prod(given), dtype=np.float32).reshape(given)
        execution = await model.infer({"X": array}, given[0])
        assert execution.outputs["Y"].shape == given
        assert (execution.outputs["Y"] == 2 * array).all()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (tables("[-1, 1]", "[-1, 1]"), r"\[input.X\] reshape: wanted \[-1\], as the model has it, got \[-1, 1\]"),
        (tables("[-1, 2]", "[-1]"), r"wanted as many elements as shape \[-1, 2\]"),
        (tables("[-1, -1]", "[-1]"), "with at most one variable size"),
        ("[input.X]\nreshape = [-1]\n", "wanted a shape beside it"),
    ],
)
async def test_what_cannot_be(tmp_path: Path, config: str, reason: str) -> None:
    write_twice(tmp_path, ("batch",), config)
    async with serving(tmp_path) as served:
        with pytest.raises(ModelNotReady, match=reason):
            served.find("twice")


async def test_a_model_that_is_declared_has_no_other_shape(tmp_path: Path) -> None:
    write_identity(tmp_path, "echo", {"X": ("FP32", [-1, 1])})
    with (tmp_path / "echo" / "model.toml").open("a") as file:
        file.write("reshape = [-1]\n")
    async with serving(tmp_path) as served:
        with pytest.raises(ModelNotReady, match="reshape: wanted none, because the backend identity"):
            served.find("echo")
