"""The build: a checked request to a plan and its metadata.

TensorRT gives None instead of a plan when something is wrong, and says why to an error recorder (one for each build) or to its logger.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from core_grpc.backends.tensorrt.bindings import Bindings, listening, logger_of
from core_grpc.backends.tensorrt.build.configuration import add_profiles, configured, load_plugins
from core_grpc.backends.tensorrt.build.failures import BuildCancelled, BuildRefused
from core_grpc.backends.tensorrt.build.fusions import read_fusions
from core_grpc.backends.tensorrt.build.network import ParsedNetwork, parse_network
from core_grpc.backends.tensorrt.build.onnx_model import OnnxModel, read_model
from core_grpc.backends.tensorrt.build.options import CURRENT, BuildRequest, check_request
from core_grpc.backends.tensorrt.build.output import check_output, directory_of
from core_grpc.backends.tensorrt.build.profiles import complete_profiles, suggest_profiles
from core_grpc.backends.tensorrt.build.progress import BuildObserver, monitor_for
from core_grpc.backends.tensorrt.build.recorder import ErrorRecord, Journal, quiet_stdout, recorder_for
from core_grpc.backends.tensorrt.build.remedies import remedy_for
from core_grpc.backends.tensorrt.build.timing_cache import TimingCache
from core_grpc.backends.tensorrt.description import spelled_profile
from core_grpc.backends.tensorrt.machine import Machine, peak_resident_bytes
from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, Profile, SourceInfo, sha256_of, write_plan
from core_grpc.version import __version__


@dataclass(frozen=True, slots=True)
class _Built:
    """What one build gave."""

    model: OnnxModel
    parsed: ParsedNetwork
    profiles: tuple[Profile, ...]
    content: bytes
    journal: Journal
    seconds: float
    notes: tuple[str, ...]


def build_plan(bindings: Bindings, request: BuildRequest, machine: Machine, observer: BuildObserver) -> PlanMetadata:
    """Builds a plan and writes it with its metadata. Blocks; the observer is called on this thread.

    Raises:
        BuildRefused: there will be no plan; nothing was written.
        BuildCancelled: the observer said so; nothing was written.
    """
    notes = list(check_request(bindings, request, machine))
    check_output(request.plan)
    model = read_model(request.model, request.independent_dimensions)
    if request.precision not in (None, model.precision):
        raise BuildRefused(f"--precision {request.precision}: {model.path.name} is in {model.precision}")
    notes += model.notes
    if model.precision == "fp8":
        notes.append("FP8 runs on GPUs of compute capability 8.9 and newer")
    profiles = _profiles(model, request, observer)
    for note in notes:
        observer.note(note)
    built = _build(bindings, request, model, profiles, observer)
    for note in built.notes:
        observer.note(note)
    metadata = _with_fusions(_metadata(bindings, request, machine, built, notes), bindings, machine, built.content)
    try:
        with directory_of(request.plan):
            write_plan(request.plan, built.content, metadata)
    except OSError as error:
        raise BuildRefused(f"{request.plan} cannot be written: {error.strerror}") from None
    return metadata


def _build(bindings: Bindings, request: BuildRequest, model: OnnxModel, profiles: tuple[Profile, ...], observer: BuildObserver) -> _Built:
    started = time.monotonic()
    record = ErrorRecord()
    journal = Journal(record)
    with listening(bindings, journal.hear), quiet_stdout():
        builder = bindings.module.Builder(logger_of(bindings))
        load_plugins(builder, request.plugins)
        parsed = parse_network(bindings, builder, model)
        # The parser's errors are the parser's own; what follows is the builder's.
        record.errors.clear()
        builder.error_recorder = recorder_for(bindings, record)
        config = configured(bindings, builder, request)
        cache = TimingCache.of(bindings, config, request.timing_cache)
        add_profiles(builder, config, record, profiles)
        config.progress_monitor = monitor_for(bindings, observer)
        plan = None if observer.is_cancelled() else builder.build_serialized_network(parsed.network, config)
        if observer.is_cancelled():
            raise BuildCancelled("the build was cancelled; nothing was written")
        if plan is None:
            raise _refusal(model, record)
        notes = (*parsed.notes, *map(_explained, journal.warnings), *cache.keep())
        content = bytes(plan)
    return _Built(model, parsed, profiles, content, journal, time.monotonic() - started, notes)


def _profiles(model: OnnxModel, request: BuildRequest, observer: BuildObserver) -> tuple[Profile, ...]:
    if request.profiles:
        return complete_profiles(model.inputs, request.profiles)
    suggestion = suggest_profiles(model.inputs)
    for number, profile in enumerate(suggestion.profiles):
        observer.note(f"profile {number}, suggested: --shapes {spelled_profile(profile)}")
    for reason in suggestion.reasons:
        observer.note(f"  {reason}")
    return suggestion.profiles


def _explained(warning: str) -> str:
    remedy = remedy_for("", warning)
    return f"{warning} → {remedy}" if remedy else warning


def _refusal(model: OnnxModel, record: ErrorRecord) -> BuildRefused:
    lines = []
    for text in record.errors or ["TensorRT gave no reason"]:
        remedy = remedy_for("", text)
        lines.append(f"  {text}")
        if remedy:
            lines.append(f"    → {remedy}")
    if model.branches and not any("→" in line for line in lines):
        lines.append(f"    → the model has branches ({', '.join(model.branches)}), which may be why: export it for one case, without them")
    return BuildRefused(f"{model.path.name}: the parser took it, but TensorRT cannot build it", lines)


def _metadata(bindings: Bindings, request: BuildRequest, machine: Machine, built: _Built, notes: list[str]) -> PlanMetadata:
    return PlanMetadata(
        source=_source(request, built.model),
        flavour=bindings.flavour.name,
        flavour_version=bindings.version,
        tensorgate_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        targets=tuple(target for target in request.targets if target != CURRENT),
        device=machine.device if not request.targets or CURRENT in request.targets else "",
        precision=built.model.precision,
        inputs=built.parsed.inputs,
        outputs=built.parsed.outputs,
        profiles=built.profiles,
        plan_sha256=hashlib.sha256(built.content).hexdigest(),
        plan_bytes=len(built.content),
        options=_options(request),
        build_s=round(built.seconds, 3),
        peak_host_bytes=peak_resident_bytes(),
        activation_bytes=built.journal.activation_bytes,
        weights_bytes=built.journal.weights_bytes,
        layers=sum(built.parsed.layer_kinds.values()),
        layer_kinds=built.parsed.layer_kinds,
        warnings=(*notes, *built.notes),
    )


def _with_fusions(metadata: PlanMetadata, bindings: Bindings, machine: Machine, content: bytes) -> PlanMetadata:
    if not machine.gpus:
        return metadata
    # That the plan is for another GPU is no failure of the build, and not worth a line.
    with listening(bindings, lambda _severity, _message: None):
        fusions = read_fusions(bindings, content)
    return metadata if fusions is None else replace(metadata, engine_layers=fusions.layers, fused_layers=fusions.fused)


def _source(request: BuildRequest, built: OnnxModel) -> SourceInfo:
    named = built if request.source is None else read_model(request.source)
    return SourceInfo(
        file=named.path.name,
        sha256=named.sha256,
        size_bytes=named.size_bytes,
        opset=named.opset,
        external_sha256={name: sha256_of(named.path.parent / name) for name in named.external_files},
        converted_sha256="" if request.source is None else built.sha256,
    )


def _options(request: BuildRequest) -> dict[str, Any]:
    return {
        "workspace_bytes": request.workspace_bytes,
        "optimization_level": request.optimization_level,
        "version_compatible": request.version_compatible,
        "hardware_compatibility": request.hardware_compatibility,
        "refit": request.refit,
        "strip_weights": request.strip_weights,
        "plugins": ",".join(path.name for path in request.plugins),
    }
