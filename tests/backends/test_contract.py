"""The contract of ``backends/base.py``, held against every backend in ``BACKENDS``: each says how to make an identity of any datatype."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from onnx import helper

from core_grpc.backends import BACKENDS, load_backend
from core_grpc.backends.base import LoadedModel, LoadedRequestModel, ModelInstance, ModelSource, RequestInstance
from core_grpc.errors import GatewayError, ModelLoadFailed
from core_grpc.types import Array, Datatype, InferRequest, TensorSpec
from tests.support.models import onnx_model, write_onnx
from tests.support.python_models import write_python_model

ROWS = 3


def identity_source(tmp_path: Path, datatype: Datatype) -> ModelSource:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return ModelSource("m", "1", tmp_path / "m" / "1", {}, (TensorSpec("X", datatype, (-1, 4)),))


def onnxruntime_source(tmp_path: Path, datatype: Datatype) -> ModelSource:
    shape = (datatype, ("batch", 4))
    model = onnx_model([helper.make_node("Identity", ["X"], ["Y"])], {"X": shape}, {"Y": shape})
    return ModelSource("m", "1", write_onnx(tmp_path, "m", model))


def python_source(tmp_path: Path, datatype: Datatype) -> ModelSource:
    tensor = (datatype.value, [-1, 4])
    directory = write_python_model(tmp_path, "m", IDENTITY, inputs={"X": tensor}, outputs={"Y": tensor})
    return ModelSource("m", "1", directory, {}, (TensorSpec("X", datatype, (-1, 4)),), (TensorSpec("Y", datatype, (-1, 4)),))


SOURCES: Mapping[str, Callable[[Path, Datatype], ModelSource]] = {
    "identity": identity_source,
    "onnxruntime": onnxruntime_source,
    "python": python_source,
}

IDENTITY = """
    class Model:
        def execute(self, requests):
            return [{"Y": request.inputs["X"]} for request in requests]
"""


class OneRequest(NamedTuple):
    """A request alone in its batch."""

    inputs: Mapping[str, Array]
    request: InferRequest | None = None
    is_abandoned: bool = False


class Arrays:
    """An instance of either kind, asked with arrays."""

    def __init__(self, instance: ModelInstance | RequestInstance) -> None:
        self._instance = instance
        self.close = instance.close

    def execute(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if isinstance(self._instance, RequestInstance):
            (part,) = self._instance.execute_requests([OneRequest(inputs)])
            assert not isinstance(part, GatewayError), part
            return part
        return self._instance.execute(inputs)


def values(datatype: Datatype, seed: int = 0) -> Array:
    """Extremes of the datatype, [ROWS, 4]."""
    if datatype is Datatype.BYTES:
        texts = np.empty((ROWS, 4), dtype=object)
        texts.reshape(-1)[:] = [b"", b"a", "é\0z".encode(), b"x" * 1000, *(str(seed + i).encode() for i in range(8))]
        return texts
    if datatype is Datatype.BOOL:
        return np.random.default_rng(seed).integers(0, 2, (ROWS, 4)).astype(bool)
    if datatype in (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64):
        return np.array([[0, -0.0, np.inf, -np.inf], [np.nan, 1.5, 65504, -2.5], [seed, 1, 2, 3]]).astype(datatype.dtype)
    limits = np.iinfo(datatype.dtype)
    return np.array([[limits.min, limits.max, 0, 1], [2, 3, 4, 5], [seed, 7, 8, 9]], dtype=datatype.dtype)


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def load(backend_name: str, tmp_path: Path, datatype: Datatype = Datatype.FP32) -> LoadedModel | LoadedRequestModel:
    return cast("LoadedModel", load_backend(backend_name).load(SOURCES[backend_name](tmp_path, datatype)))


def test_every_backend_is_held_to_the_contract() -> None:
    assert set(SOURCES) == set(BACKENDS)


@pytest.mark.parametrize("datatype", list(Datatype))
def test_every_datatype_comes_back_exactly(backend_name: str, tmp_path: Path, datatype: Datatype) -> None:
    model = load(backend_name, tmp_path, datatype)
    assert [(spec.name, spec.datatype, spec.shape) for spec in model.inputs] == [("X", datatype, (-1, 4))]
    assert [(spec.name, spec.datatype, spec.shape) for spec in model.outputs] == [("Y", datatype, (-1, 4))]
    assert model.inputs[0].dimension_names == ("batch", "")
    instance = Arrays(model.create_instance())
    given = values(datatype)
    given.setflags(write=False)  # a view of a request's body is read-only
    got = instance.execute({"X": given})["Y"]
    assert got.dtype == datatype.dtype
    assert got.flags.c_contiguous
    if datatype is Datatype.BYTES:
        assert got.tolist() == given.tolist()
    else:
        assert got.tobytes() == given.tobytes(), "bit for bit, NaN and -0.0 as well"
    instance.close()
    model.close()


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BF16, Datatype.BYTES])
def test_answers_are_not_overwritten_by_later_runs(backend_name: str, tmp_path: Path, datatype: Datatype) -> None:
    instance = Arrays(load(backend_name, tmp_path, datatype).create_instance())
    kept = [instance.execute({"X": values(datatype, seed)})["Y"] for seed in range(20)]
    instance.close()
    for seed, array in enumerate(kept):
        assert array.tolist()[2][1:] == values(datatype, seed).tolist()[2][1:]
        assert array.tobytes() == values(datatype, seed).tobytes() or datatype is Datatype.BYTES


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BF16, Datatype.BYTES])
def test_empty_tensors(backend_name: str, tmp_path: Path, datatype: Datatype) -> None:
    instance = Arrays(load(backend_name, tmp_path, datatype).create_instance())
    got = instance.execute({"X": np.zeros((0, 4), dtype=datatype.dtype)})["Y"]
    instance.close()
    assert (got.shape, got.dtype) == ((0, 4), datatype.dtype)


def test_instances_run_on_threads_of_their_own_at_once(backend_name: str, tmp_path: Path) -> None:
    """ENG-20: unique payloads from many threads, none mixed up."""
    model = load(backend_name, tmp_path)
    problems: list[str] = []

    def work(seed: int) -> None:
        instance = Arrays(model.create_instance())
        for i in range(200):
            given = np.full((2, 4), seed * 1000 + i, dtype=np.float32)
            if not np.array_equal(instance.execute({"X": given})["Y"], given):
                problems.append(f"{seed} {i}")
        instance.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_close_is_idempotent(backend_name: str, tmp_path: Path) -> None:
    model = load(backend_name, tmp_path)
    instance = Arrays(model.create_instance())
    for _ in range(2):
        instance.close()
        model.close()


@pytest.mark.parametrize("options", [{"no_such_option": 1}])
def test_unknown_option_is_refused_by_name(backend_name: str, tmp_path: Path, options: Mapping[str, Any]) -> None:
    source = SOURCES[backend_name](tmp_path, Datatype.FP32)
    with pytest.raises(ModelLoadFailed, match="no_such_option"):
        load_backend(backend_name).load(replace(source, options=options))
