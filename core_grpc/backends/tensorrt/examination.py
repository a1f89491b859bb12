"""What this machine has and can do with GPUs and TensorRT, asked without starting any of it.

The driver is asked through its own library by ctypes: importing bindings of CUDA for that would need them installed, and making a TensorRT
runtime without a driver may end in a segmentation fault.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from core_grpc.backends.gpus import visible_gpus
from core_grpc.backends.tensorrt.bindings import FLAVOURS, RTX, TENSORRT, Bindings, BindingsAbsent, capability_names, find_bindings
from core_grpc.version import __version__

_DRIVER = "libcuda.so.1"
_NAME_BYTES = 256
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver describes it."""

    number: int
    name: str
    compute_capability: str
    """``9.0``"""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver."""

    cuda_version: str
    """The newest CUDA that it runs, ``13.0``; empty where it cannot be asked."""
    absence: str
    """Why it cannot be asked; empty where it can."""
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of an examination."""

    name: str
    state: str
    is_there: bool
    remedy: str = ""
    """The command that installs it, or what to do."""


def examined() -> tuple[Finding, ...]:
    """Everything, in the order in which one thing needs the other. Blocks for a second or two while libraries load."""
    driver = driver_of_machine()
    flavours = find_bindings()
    return (
        Finding(
            "tensorgate", f"{__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}", is_there=True
        ),
        _driver_finding(driver),
        *(_gpu_finding(gpu, flavours[RTX.name]) for gpu in driver.gpus),
        *(_flavour_finding(name, found) for name, found in flavours.items()),
        _package_finding("cuda-python", "cuda", "pip install 'cuda-python>=13,<14'"),
        _onnxruntime_finding(driver),
        _package_finding("onnx", "onnx", "pip install 'tensorgate[build]'"),
        *_abilities(driver, flavours),
    )


def driver_of_machine() -> Driver:
    """Asks the driver for its version and its GPUs."""
    try:
        library = ctypes.CDLL(_DRIVER)
    except OSError:
        return Driver("", f"{_DRIVER} is not installed")
    if code := library.cuInit(0):
        return Driver("", f"{_DRIVER} is there and finds no GPU (cuInit gives {code})")
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    library.cuDeviceGetCount(ctypes.byref(count))
    # The version is 1000 * major + 10 * minor.
    text = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Driver(text, "", tuple(_gpu(library, number) for number in range(count.value)))


def _gpu(library: ctypes.CDLL, number: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    size, name = ctypes.c_size_t(), ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGet(ctypes.byref(device), number)
    library.cuDeviceGetName(name, _NAME_BYTES, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return Gpu(number, name.value.decode(errors="replace"), f"{major.value}.{minor.value}", size.value)


def _driver_finding(driver: Driver) -> Finding:
    if driver.absence:
        seen = visible_gpus()
        remedy = f"{seen} device files of GPUs are there: install the driver's libraries" if seen else "a machine with an NVIDIA GPU"
        return Finding("NVIDIA driver", driver.absence, is_there=False, remedy=remedy)
    return Finding("NVIDIA driver", f"runs CUDA up to {driver.cuda_version}", is_there=True)


def _gpu_finding(gpu: Gpu, rtx: Bindings | BindingsAbsent) -> Finding:
    state = f"{gpu.name}, compute capability {gpu.compute_capability}, {gpu.memory_bytes / 2**30:.0f} GiB"
    if isinstance(rtx, Bindings) and gpu.compute_capability not in capability_names(rtx):
        state += f"; TensorRT-RTX {rtx.version} does not run on it: full TensorRT does, or ONNX Runtime with CUDA"
    return Finding(f"GPU {gpu.number}", state, is_there=True)


def _flavour_finding(name: str, found: Bindings | BindingsAbsent) -> Finding:
    if isinstance(found, Bindings):
        return Finding(found.flavour.title, found.version, is_there=True)
    title = FLAVOURS[name].title
    return Finding(title, found.reason.removeprefix(f"{title} "), is_there=False, remedy=found.remedy)


def _package_finding(distribution: str, module: str, remedy: str) -> Finding:
    if find_spec(module) is None:
        return Finding(distribution, "is not installed", is_there=False, remedy=remedy)
    return Finding(distribution, metadata.version(distribution), is_there=True)


def _onnxruntime_finding(driver: Driver) -> Finding:
    """ONNX Runtime by its distributions: the one for GPUs has the same module."""
    for distribution, place in (("onnxruntime-gpu", "on CPUs and by CUDA"), ("onnxruntime", "on CPUs")):
        try:
            state = f"{metadata.version(distribution)}, serves ONNX models {place}"
        except metadata.PackageNotFoundError:
            continue
        lacks_cuda = distribution == "onnxruntime" and driver.gpus
        remedy = "for the GPU: pip uninstall onnxruntime; pip install 'tensorgate[cuda]'" if lacks_cuda else ""
        return Finding(distribution, state, is_there=True, remedy=remedy)
    return Finding("onnxruntime", "is not installed", is_there=False, remedy="pip install tensorgate")


def _abilities(driver: Driver, found: Mapping[str, Bindings | BindingsAbsent]) -> Sequence[Finding]:
    has_onnx = find_spec("onnx") is not None
    rtx = found.get(RTX.name)
    targets = ", ".join(capability_names(rtx)) if isinstance(rtx, Bindings) and has_onnx else ""
    full = isinstance(found.get(TENSORRT.name), Bindings) and has_onnx and bool(driver.gpus)
    own = "" if full else TENSORRT.install if driver.gpus else f"a GPU in this machine, and {TENSORRT.install}"
    return (
        Finding(
            "builds ahead of time",
            f"plans for compute capabilities {targets}, without such a GPU here" if targets else "no",
            is_there=bool(targets),
            remedy="" if targets else RTX.install,
        ),
        Finding("builds for its own GPU", "yes" if full else "no", is_there=full, remedy=own),
        Finding("runs plans", "no: this version serves no plans", is_there=False),
    )
