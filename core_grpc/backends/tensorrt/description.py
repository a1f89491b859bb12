"""A plan's metadata as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core_grpc.backends.tensorrt.bindings import FLAVOURS
from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, Profile, TensorInfo

_KINDS = 6
"""Kinds of layers that are listed one by one."""


def described(metadata: PlanMetadata) -> tuple[str, ...]:
    """Every line that the metadata give, each as ``  name  value``."""
    return tuple(f"  {name:<12}{value}".rstrip() for name, value in _rows(metadata))


def size(count: int) -> str:
    """Bytes in the unit that fits, powers of 1000."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def spelled_profile(profile: Profile) -> str:
    """A profile as ``tensorgate build --shapes`` takes it: scalars have nothing to say."""
    parts = []
    for name, shapes in profile.items():
        if not shapes.min:
            continue
        joined = ["x".join(map(str, shape)) for shape in (shapes.min, shapes.opt, shapes.max)]
        parts.append(f"{name}:{joined[0] if len(set(joined)) == 1 else '..'.join(joined)}")
    return ",".join(parts)


def targets_of(metadata: PlanMetadata) -> str:
    """What the plan can run on, in words."""
    if metadata.targets:
        return f"compute capability {', '.join(metadata.targets)}"
    if metadata.options.get("hardware_compatibility"):
        return f"GPUs by hardware compatibility {metadata.options['hardware_compatibility']}, built on {metadata.device}"
    if metadata.flavour == "tensorrt_rtx":
        return f"any GPU that TensorRT-RTX {metadata.flavour_version} runs on"
    return metadata.device or "the GPU that it was built on"


def _rows(metadata: PlanMetadata) -> Iterator[tuple[str, str]]:
    title = FLAVOURS[metadata.flavour].title if metadata.flavour in FLAVOURS else metadata.flavour
    yield "library", f"{title} {metadata.flavour_version}"
    yield "for", targets_of(metadata)
    yield "source", f"{metadata.source.file}, opset {metadata.source.opset}, SHA-256 {metadata.source.sha256[:12]}…"
    yield from (("with", f"{name}, SHA-256 {digest[:12]}…") for name, digest in metadata.source.external_sha256.items())
    yield "precision", metadata.precision
    yield from (("input", _tensor(tensor)) for tensor in metadata.inputs)
    yield from (("output", _tensor(tensor)) for tensor in metadata.outputs)
    yield from ((f"profile {number}", spelled_profile(profile)) for number, profile in enumerate(metadata.profiles))
    yield "layers", _layers(metadata)
    if metadata.engine_layers is not None:
        yield "fused", f"to {metadata.engine_layers} layers, {len(metadata.fused_layers)} of which were several"
    yield "plan", f"{size(metadata.plan_bytes)}, SHA-256 {metadata.plan_sha256[:12]}…"
    yield "GPU memory", _memory(metadata)
    yield "options", _options(metadata)
    when = (
        f"{metadata.created} in {metadata.build_s:.1f} s, with {size(metadata.peak_host_bytes)} of memory, by tensorgate "
        f"{metadata.tensorgate_version}"
    )
    yield "built", when
    yield from _accuracy(metadata)
    yield from (("note", text) for text in metadata.warnings)


def _tensor(tensor: TensorInfo) -> str:
    names: Sequence[str] = tensor.dimension_names or ("",) * len(tensor.shape)
    shape = ", ".join(str(length) if length >= 0 else name or "?" for length, name in zip(tensor.shape, names, strict=True))
    return f"{tensor.name} {tensor.datatype} [{shape}]"


def _layers(metadata: PlanMetadata) -> str:
    kinds = [f"{count} {name.lower().replace('_', ' ')}" for name, count in metadata.layer_kinds.items()]
    if len(kinds) > _KINDS:
        kinds[_KINDS:] = [f"{sum(list(metadata.layer_kinds.values())[_KINDS:])} others"]
    return f"{metadata.layers} before fusion{': ' if kinds else ''}{', '.join(kinds)}"


def _memory(metadata: PlanMetadata) -> str:
    if metadata.activation_bytes is None or metadata.weights_bytes is None:
        return "not known: the builder did not say"
    return f"{size(metadata.weights_bytes)} of weights, {size(metadata.activation_bytes)} for each context at the largest shapes"


def _options(metadata: PlanMetadata) -> str:
    said = dict(metadata.options)
    workspace = said.pop("workspace_bytes", None)
    texts = [f"workspace {_power_of_two(int(workspace))}"] if workspace is not None else []
    texts += [name if value is True else f"{name} {value}" for name, value in said.items() if value is not False and value != ""]
    return ", ".join(text.replace("_", " ") for text in texts)


def _power_of_two(count: int) -> str:
    """Bytes as ``--workspace`` takes them."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def _accuracy(metadata: PlanMetadata) -> Iterator[tuple[str, str]]:
    accuracy = metadata.accuracy
    if accuracy is None:
        yield "accuracy", "not judged"
        return
    verdict = "promoted" if accuracy.is_promoted else "refused"
    text = (
        f"{verdict}: {accuracy.metric} drifts {accuracy.drift:.4g} of at most {accuracy.max_drift:.4g} on {accuracy.samples} samples, "
        f"against {accuracy.reference}"
    )
    yield "accuracy", text
    if accuracy.kept_layers:
        yield "kept", f"{len(accuracy.kept_layers)} nodes in a higher precision: {', '.join(accuracy.kept_layers)}"
