"""What is asked of a build, and whether this flavour on this machine can do it: asked before anything is built."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core_grpc.backends.tensorrt.bindings import RTX, Bindings, BindingsAbsent, Flavour, capability_names, load_bindings
from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.machine import Machine
from core_grpc.backends.tensorrt.plan_metadata import Profile

CURRENT = "current"
"""The target that is this machine's GPU."""
HARDWARE_LEVELS: Mapping[str, str] = {"ampere+": "AMPERE_PLUS", "same": "SAME_COMPUTE_CAPABILITY"}
"""``--hardware-compatible``: names of TensorRT's HardwareCompatibilityLevel."""
DEFAULT_WORKSPACE_BYTES = 1 << 30
DEFAULT_OPTIMIZATION_LEVEL = 3

_TARGET = re.compile(r"^\d{1,2}\.\d$")
_UNITS: Mapping[str, int] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"^(\d+)\s*([KMG]?)(i?B)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One plan that somebody wants."""

    model: Path
    """The ONNX file that is parsed."""
    plan: Path
    """The file that is written."""
    source: Path | None = None
    """The file that the user named, where ``model`` was converted from it."""
    profiles: tuple[Profile, ...] = ()
    """Empty: suggested."""
    independent_dimensions: tuple[str, ...] = ()
    """Names of dimensions whose equal names do not mean equal sizes."""
    precision: str | None = None
    """What the file has to be in; None takes it as it is."""
    targets: tuple[str, ...] = ()
    """Compute capabilities such as ``8.9``, or ``current``; empty leaves it to the flavour."""
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES
    optimization_level: int = DEFAULT_OPTIMIZATION_LEVEL
    hardware_compatibility: str = ""
    """Of ``HARDWARE_LEVELS``; empty for none."""
    version_compatible: bool = False
    refit: bool = False
    strip_weights: bool = False
    plugins: tuple[Path, ...] = ()
    timing_cache: Path | None = None


def choose_flavour(name: str, machine: Machine) -> Bindings:
    """The flavour that builds: the named one; with ``auto``, full TensorRT where it and a GPU are there, else TensorRT-RTX.

    Raises:
        BuildRefused: none that builds is installed.
    """
    candidates = [name] if name != "auto" else ["tensorrt", "tensorrt_rtx"] if machine.gpus else ["tensorrt_rtx"]
    absences: list[str] = []
    for candidate in candidates:
        try:
            return load_bindings(candidate)
        except BindingsAbsent as absence:
            absences.append(f"  {absence}")
    raise BuildRefused("there is no TensorRT here that builds", absences)


def check_request(bindings: Bindings, request: BuildRequest, machine: Machine) -> tuple[str, ...]:
    """What the user should know of the options; empty where there is nothing.

    Raises:
        BuildRefused: the flavour, or this machine, cannot do it; the text names the flag and says what would.
    """
    if bindings.flavour is RTX:
        return _check_rtx(bindings, request, machine)
    return _check_full(bindings.flavour, request, machine)


def parse_size(text: str) -> int:
    """Bytes from ``1GiB``, ``512M``, ``1048576``: units are powers of 1024.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"wanted bytes such as 512MiB or 1GiB, got {text!r}")
    return int(match[1]) * _UNITS[match[2].upper()]


def _check_rtx(bindings: Bindings, request: BuildRequest, machine: Machine) -> tuple[str, ...]:
    _check_targets(bindings, request.targets, machine)
    if request.version_compatible:
        raise BuildRefused("--version-compatible: TensorRT-RTX has no lean runtime that would run such a plan; it is full TensorRT's")
    if request.hardware_compatibility:
        raise BuildRefused("--hardware-compatible is full TensorRT's; TensorRT-RTX takes the GPUs by name: --target 8.6,8.9")
    if machine.gpus == 0:
        for flag, is_set in (("--refit", request.refit), ("--strip-weights", request.strip_weights)):
            if is_set:
                raise BuildRefused(
                    f"{flag}: TensorRT-RTX {bindings.version} needs a GPU in this machine to build such a plan, and there is none"
                )
    _check_plugins(request.plugins)
    if request.timing_cache is not None:
        return ("--timing-cache has no effect: TensorRT-RTX times nothing at build, it compiles for the GPU when a plan is loaded",)
    return ()


def _check_full(flavour: Flavour, request: BuildRequest, machine: Machine) -> tuple[str, ...]:
    if not flavour.can_build:
        raise BuildRefused(f"--flavour {flavour.name}: {flavour.title} runs plans and builds none")
    if machine.gpus == 0:
        raise BuildRefused(
            f"{flavour.title} builds on the GPU that it builds for, and there is none in this machine",
            ["  Build ahead of time with TensorRT-RTX instead: --flavour rtx --target 8.9"],
        )
    if [target for target in request.targets if target != CURRENT]:
        raise BuildRefused(
            f"--target: {flavour.title} builds for the GPU of this machine; other GPUs take --hardware-compatible or --flavour rtx"
        )
    _check_plugins(request.plugins)
    return ()


def _check_targets(bindings: Bindings, targets: Sequence[str], machine: Machine) -> None:
    known = capability_names(bindings)
    for target in targets:
        if target == CURRENT:
            if machine.gpus == 0:
                raise BuildRefused(f"--target current: there is no GPU in this machine; name one of {', '.join(known)}")
            if len(targets) > 1:
                raise BuildRefused("--target: wanted current alone, or names")
        elif not _TARGET.fullmatch(target):
            raise BuildRefused(f"--target: wanted compute capabilities such as 8.9,12.0, got {target!r}")
        elif target not in known:
            raise BuildRefused(
                f"--target {target}: TensorRT-RTX {bindings.version} cannot build for it; it builds for {', '.join(known)}",
                ["  Data-centre GPUs (9.0, 10.0) take full TensorRT on such a GPU, or ONNX Runtime with CUDA."],
            )
    if len(set(targets)) < len(targets):
        raise BuildRefused(f"--target: wanted each once, got {','.join(targets)}")


def _check_plugins(plugins: Sequence[Path]) -> None:
    for path in plugins:
        if not path.is_file():
            raise BuildRefused(f"--plugin {path}: there is no such file; wanted a shared library of TensorRT plugins")
