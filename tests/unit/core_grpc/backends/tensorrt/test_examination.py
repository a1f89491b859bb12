"""What a machine has: the real one, and one with a driver that is a fake."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core_grpc.backends.gpus import visible_gpus
from core_grpc.backends.tensorrt import examination
from core_grpc.backends.tensorrt.bindings import load_bindings
from core_grpc.backends.tensorrt.examination import Driver, Gpu, driver_of_machine, examined

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
    assert "8.0, 8.6, 8.9, 12.0" in found["builds ahead of time"].state
    assert found["NVIDIA driver"].is_there is (visible_gpus() > 0)
    assert not found["runs plans"].is_there


def test_a_gpu_says_whether_tensorrt_rtx_runs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def findings(capability: str) -> dict[str, examination.Finding]:
        driver = Driver("13.2", "", (Gpu(0, "A GPU", capability, 24 << 30),))
        monkeypatch.setattr(examination, "driver_of_machine", lambda: driver)
        return {finding.name: finding for finding in examined()}

    assert findings("8.9")["GPU 0"].state == "A GPU, compute capability 8.9, 24 GiB"
    found = findings("9.0")
    version = load_bindings("tensorrt_rtx").version
    assert found["GPU 0"].state.endswith(f"; TensorRT-RTX {version} does not run on it: full TensorRT does, or ONNX Runtime with CUDA")
    # What serves ONNX files here has no CUDA, and now there is a GPU.
    assert "tensorgate[cuda]" in found["onnxruntime"].remedy
    assert found["builds for its own GPU"].remedy == "pip install 'tensorgate[tensorrt,build]'"


def test_an_installation_without_the_extras_is_told_what_to_install(tmp_path: Path) -> None:
    """Modules that cannot be found, as in an environment that has none of the extras."""
    extras = ("onnx", "cuda", "tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt_lean", "tensorrt_lean_bindings")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nfor name in {extras}:\n    sys.modules[name] = None\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tensorgate", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=40, check=False)

    shown = run("doctor")
    assert shown.returncode == 0, shown.stderr
    assert "- builds ahead of time    no\n                          → pip install 'tensorgate[rtx,build]'\n" in shown.stdout
    refused = run("build", "model.onnx", "-o", "1")
    assert (refused.returncode, refused.stderr) == (
        1,
        "tensorgate build needs onnx: pip install 'tensorgate[rtx,build]', which takes no GPU, or 'tensorgate[tensorrt,build]'\n",
    )
    assert "there is no such file" in run("inspect", "no.plan").stderr


def test_what_is_missing_comes_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "find_spec", lambda _name: None)
    load_bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", None)
    try:
        found = {finding.name: finding for finding in examined()}
    finally:
        load_bindings.cache_clear()
    rtx = found["TensorRT-RTX"]
    assert (rtx.state, rtx.remedy) == ("is not installed", "pip install 'tensorgate[rtx,build]'")
    assert found["onnx"].remedy == "pip install 'tensorgate[build]'"
    ahead = found["builds ahead of time"]
    assert (ahead.state, ahead.is_there, ahead.remedy) == ("no", False, "pip install 'tensorgate[rtx,build]'")


def test_the_command_shows_it() -> None:
    command = [sys.executable, "-m", "tensorgate", "doctor"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=40, check=True).stdout
    assert "+ TensorRT-RTX            1.7" in shown
    findings = json.loads(subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=40, check=True).stdout)
    assert {"name": "runs plans", "state": "no: this version serves no plans", "is_there": False, "remedy": ""} in findings
