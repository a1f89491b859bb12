"""What a machine has: the real one, and one with a driver that is a fake."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core_grpc.backends.gpus import visible_gpus
from core_grpc.backends.tensorrt import examination
from core_grpc.backends.tensorrt.bindings import load_bindings
from core_grpc.backends.tensorrt.examination import Gpu, driver_of_machine, examined

ROOT = Path(__file__).parents[5]


class FakeDriver:
    """Answers as libcuda does, for one GPU."""

    def __init__(self, init_code: int = 0) -> None:
        self._init_code = init_code

    def cuInit(self, _flags: int) -> int:
        return self._init_code

    def cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 13020

    def cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 1

    def cuDeviceGet(self, device: Any, number: int) -> None:
        device._obj.value = number

    def cuDeviceGetName(self, name: Any, _size: int, _device: Any) -> None:
        name.value = b"A GPU"

    def cuDeviceTotalMem_v2(self, size: Any, _device: Any) -> None:
        size._obj.value = 24 << 30

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _device: Any) -> None:
        value._obj.value = {75: 8, 76: 9}[attribute]


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    def load(name: str) -> FakeDriver:
        assert name == "libcuda.so.1"
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_a_driver_is_asked_for_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, FakeDriver())
    driver = driver_of_machine()
    assert (driver.cuda_version, driver.absence) == ("13.2", "")
    assert driver.gpus == (Gpu(0, "A GPU", "8.9", 24 << 30),)


def test_a_driver_without_a_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, FakeDriver(init_code=100))
    assert driver_of_machine().absence == "libcuda.so.1 is there and finds no GPU (cuInit gives 100)"


def test_this_machine() -> None:
    found = {finding.name: finding for finding in examined()}
    assert found["TensorRT-RTX"].state == load_bindings("tensorrt_rtx").version
    assert found["TensorRT lean runtime"].is_there
    assert found["cuda-python"].is_there
    assert found["builds ahead of time"].is_there
    assert found["NVIDIA driver"].is_there is (visible_gpus() > 0)
    assert not found["runs plans"].is_there


def test_what_is_missing_comes_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "find_spec", lambda _name: None)
    load_bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", None)
    try:
        found = {finding.name: finding for finding in examined()}
    finally:
        load_bindings.cache_clear()
    assert "pip install 'tensorgate[rtx]'" in found["TensorRT-RTX"].state
    assert found["onnx"].remedy == "pip install 'tensorgate[build]'"
    assert (found["builds ahead of time"].state, found["builds ahead of time"].is_there) == ("no", False)


def test_the_command_shows_it() -> None:
    command = [sys.executable, "-m", "tensorgate", "doctor"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=40, check=True).stdout
    assert "+ TensorRT-RTX            1.7" in shown
    findings = json.loads(subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=40, check=True).stdout)
    assert {"name": "runs plans", "state": "no: this version serves no plans", "is_there": False, "remedy": ""} in findings
