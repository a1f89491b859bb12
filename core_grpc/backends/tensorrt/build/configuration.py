"""A build's options as TensorRT's builder configuration. Everything is asked for by name; nothing by a number."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from core_grpc.backends.tensorrt.bindings import RTX, Bindings, capability_names
from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.build.options import CURRENT, HARDWARE_LEVELS, BuildRequest
from core_grpc.backends.tensorrt.build.recorder import ErrorRecord
from core_grpc.backends.tensorrt.plan_metadata import Profile


def configured(bindings: Bindings, builder: Any, request: BuildRequest) -> Any:
    """The configuration for checked options, without profiles."""
    trt = bindings.module
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_bytes)
    config.builder_optimization_level = request.optimization_level
    # So that the inspector can say what was fused, where a GPU can run the plan.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    flags = {"VERSION_COMPATIBLE": request.version_compatible, "REFIT": request.refit, "STRIP_PLAN": request.strip_weights}
    for name, is_wanted in flags.items():
        if is_wanted:
            config.set_flag(trt.BuilderFlag.__members__[name])
    if request.hardware_compatibility:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.__members__[HARDWARE_LEVELS[request.hardware_compatibility]]
    if bindings.flavour is RTX and request.targets:
        _set_targets(bindings, config, request)
    return config


def load_plugins(builder: Any, plugins: tuple[Path, ...]) -> None:
    """Loads libraries of plugins into the builder's registry.

    Raises:
        BuildRefused: one is no library that can be loaded, or has no plugins.
    """
    for path in plugins:
        try:
            # The registry's own call takes what is no library for a reason to end the process on some versions.
            ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise BuildRefused(f"--plugin {path}: cannot be loaded: {error}") from None
        if builder.get_plugin_registry().load_library(str(path.resolve())) is None:
            raise BuildRefused(f"--plugin {path}: TensorRT found no plugins in it")


def add_profiles(builder: Any, config: Any, record: ErrorRecord, profiles: tuple[Profile, ...]) -> None:
    """Adds the optimization profiles.

    Raises:
        BuildRefused: TensorRT refused one.
    """
    for number, profile in enumerate(profiles):
        made = builder.create_optimization_profile()
        for name, shapes in profile.items():
            made.set_shape(name, shapes.min, shapes.opt, shapes.max)
        # It gives -1, or says it to the recorder, and raises nothing.
        index = config.add_optimization_profile(made)
        if index < 0 or record.errors:
            raise BuildRefused(f"profile {number} was refused by TensorRT", [f"  {text}" for text in record.errors])


def _set_targets(bindings: Bindings, config: Any, request: BuildRequest) -> None:
    known = capability_names(bindings)
    current = bindings.module.ComputeCapability.CURRENT
    config.num_compute_capabilities = len(request.targets)
    for index, target in enumerate(request.targets):
        config.set_compute_capability(current if target == CURRENT else known[target], index)
