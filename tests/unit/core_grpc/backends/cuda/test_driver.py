"""The driver against the real bindings of cuda-python, as far as they go without a GPU: names, codes, errors."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from core_grpc.backends.cuda import driver as driver_module
from core_grpc.backends.cuda.driver import CudaDriver, CudaError, Driver
from core_grpc.backends.gpus import visible_gpus
from core_grpc.errors import ModelLoadFailed
from tests.support.fake_cuda import FakeCuda

runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-python is not installed")
without_gpu = pytest.mark.skipif(visible_gpus() > 0, reason="there is a GPU")


def used_names() -> set[str]:
    """What the driver takes from the bindings: ``self._cuda.X`` and ``runtime.X``."""
    tree = ast.parse(Path(driver_module.__file__).read_text(encoding="utf-8"))
    owners = {"self._cuda", "runtime", "runtime.cudaMemcpyKind", "runtime.cudaStreamCaptureMode"}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners]
    return {ast.unparse(node).replace("self._cuda.", "").replace("runtime.", "") for node in found}


def test_every_name_is_in_the_bindings() -> None:
    names = used_names()
    assert {"cudaMemcpyAsync", "cudaGraphLaunch", "cudaMemcpyKind.cudaMemcpyHostToDevice"} <= names
    for name in names:
        thing: Any = runtime
        for part in name.split("."):
            assert hasattr(thing, part), name
            thing = getattr(thing, part)


def test_sticky_codes_are_codes_of_cuda() -> None:
    codes = {int(error) for error in runtime.cudaError_t}
    assert codes >= driver_module._STICKY
    assert int(runtime.cudaError_t.cudaErrorIllegalAddress) in driver_module._STICKY
    assert int(runtime.cudaError_t.cudaErrorMemoryAllocation) not in driver_module._STICKY


def test_the_fake_has_the_driver_s_methods_with_its_arguments() -> None:
    for name, method in inspect.getmembers(Driver, inspect.isfunction):
        if name.startswith("_"):
            continue
        expected = list(inspect.signature(method).parameters)
        for implementation in (CudaDriver, FakeCuda):
            assert list(inspect.signature(getattr(implementation, name)).parameters) == expected, (implementation, name)


@without_gpu
def test_without_a_gpu_it_is_said_which_and_why() -> None:
    with pytest.raises(ModelLoadFailed, match=r"^GPU 3 cannot be used: CUDA answered cudaError\w+ \(\d+\)$"):
        CudaDriver(3)


@without_gpu
def test_an_error_has_its_code_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cudaSetDevice", lambda _number: (runtime.cudaError_t.cudaSuccess,))
    driver = CudaDriver(0)
    asked: list[bool] = []

    def last_error() -> tuple[Any]:
        asked.append(True)
        return (runtime.cudaError_t.cudaSuccess,)

    monkeypatch.setattr(runtime, "cudaGetLastError", last_error)
    with pytest.raises(CudaError, match=r"^the GPU failed: cudaMalloc answered cudaError\w+ \(\d+\)$") as caught:
        driver.allocate(64)
    assert asked, "the error would be told to the next who asks CUDA for its last one"
    assert not caught.value.is_sticky
    assert not caught.value.is_out_of_memory


@without_gpu
def test_without_cuda_python_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ModelLoadFailed, match="needs cuda-python: pip install 'cuda-python>=13,<14'"):
        CudaDriver(0)
