"""Optimization profiles: what the user wrote, or what is suggested from the model's inputs where nothing was written.

``--shapes input:1x3x224x224..4x3x224x224..8x3x224x224,mask:1x8..4x8..8x8`` is one profile: for each input the least, the usual and the
largest shape. Two shapes are the least and the largest, one shape is all three. An input that is not named takes its sizes from
dimensions of the same name in those that are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core_grpc.backends.tensorrt.build.failures import BuildRefused
from core_grpc.backends.tensorrt.build.onnx_model import GraphTensor, shared_names
from core_grpc.backends.tensorrt.plan_metadata import Profile, ShapeRange

Range = tuple[int, int, int]
"""Least, usual, largest size of one dimension."""

_BATCH: Range = (1, 4, 8)
_SEQUENCE: Range = (1, 64, 256)
_IMAGE_SIDE: Range = (32, 640, 1024)
_OTHER: Range = (1, 64, 256)
_CONTEXT = 128
"""Tokens of a language model's profiles together, past and new."""
_IMAGE_CHANNELS = frozenset({1, 3, 4})
_BATCH_NAME = re.compile(r"^(n|b|bs|batch\w*|\w*batch(_size)?)$", re.IGNORECASE)
_SEQUENCE_NAME = re.compile(r"seq|len|time|token|frames", re.IGNORECASE)
_PAST_INPUT = re.compile(r"^(past|cache)|past_key|key_value", re.IGNORECASE)
_SHAPE = re.compile(r"^\d+(x\d+)*$")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Profiles that nobody wrote, and why they are as they are."""

    profiles: tuple[Profile, ...]
    reasons: tuple[str, ...]
    """Lines for the user."""


def parse_profile(text: str) -> Profile:
    """Reads one ``--shapes``.

    Raises:
        BuildRefused: it is not of that form; the text says where.
    """
    profile: dict[str, ShapeRange] = {}
    for part in text.split(","):
        name, separator, shapes = part.strip().rpartition(":")
        if not separator or not name:
            raise BuildRefused(f"--shapes: wanted INPUT:MIN..OPT..MAX, got {part.strip()!r}")
        if name in profile:
            raise BuildRefused(f"--shapes: input '{name}' comes twice in one profile; another profile is another --shapes")
        profile[name] = _shape_range(name, shapes)
    return profile


def complete_profiles(inputs: Sequence[GraphTensor], written: Sequence[Profile]) -> tuple[Profile, ...]:
    """Checks the user's profiles against the model, and fills in inputs that are not named.

    Raises:
        BuildRefused: a profile contradicts the model; the text names the input, the axis and the sizes.
    """
    profiles = tuple(_completed(inputs, profile, number) for number, profile in enumerate(written))
    for number, profile in enumerate(profiles):
        _check_equal_names(inputs, profile, number)
    return profiles


def suggest_profiles(inputs: Sequence[GraphTensor]) -> Suggestion:
    """Profiles for a model whose inputs vary; none where nothing does."""
    if all(tensor.is_fixed for tensor in inputs):
        return Suggestion((), ())
    past = {name for tensor in inputs if _PAST_INPUT.search(tensor.name) for name in tensor.dimension_names[1:] if name}
    if past and any("input_ids" in tensor.name for tensor in inputs):
        return _language_model(inputs, past)
    ranges: dict[str, tuple[Range, str]] = {}
    reasons: list[str] = []
    profile: dict[str, ShapeRange] = {}
    for tensor in inputs:
        sizes: list[Range] = []
        for axis, size in enumerate(tensor.shape):
            name = tensor.dimension_names[axis]
            found, why = (_fixed(size), "") if size >= 0 else ranges.get(name) or _guess(tensor, axis)
            if why and not (name and name in ranges):
                reasons.append(f"'{tensor.name}' axis {axis}{f' ({name})' if name else ''}: {_spelled(found)}, {why}")
            if name and size < 0:
                ranges[name] = (found, why)
            sizes.append(found)
        profile[tensor.name] = _from_ranges(sizes)
    return Suggestion((profile,), tuple(reasons))


def _shape_range(name: str, text: str) -> ShapeRange:
    shapes = text.split("..")
    if len(shapes) > 3 or not all(_SHAPE.fullmatch(shape) for shape in shapes):
        raise BuildRefused(f"--shapes: input '{name}': wanted one to three shapes such as 1x3x224x224 joined by '..', got {text!r}")
    sizes = [tuple(int(size) for size in shape.split("x")) for shape in shapes]
    least, usual, largest = (sizes * 3)[:3] if len(sizes) == 1 else (sizes[0], sizes[-1], sizes[-1]) if len(sizes) == 2 else sizes
    if not len(least) == len(usual) == len(largest):
        raise BuildRefused(f"--shapes: input '{name}': wanted shapes with the same number of dimensions, got {text!r}")
    for axis, (low, middle, high) in enumerate(zip(least, usual, largest, strict=True)):
        if not low <= middle <= high:
            raise BuildRefused(f"--shapes: input '{name}' axis {axis}: wanted min <= opt <= max, got {low}, {middle}, {high}")
    return ShapeRange(least, usual, largest)


def _completed(inputs: Sequence[GraphTensor], written: Profile, number: int) -> Profile:
    known = {tensor.name: tensor for tensor in inputs}
    for name, shapes in written.items():
        if name not in known:
            raise BuildRefused(f"--shapes: the model has no input '{name}'; its inputs are {', '.join(known)}")
        _check_shape(known[name], shapes)
    ranges: dict[str, Range] = {}
    for name, shapes in written.items():
        for dimension, sizes in zip(known[name].dimension_names, zip(shapes.min, shapes.opt, shapes.max, strict=True), strict=True):
            if dimension:
                ranges.setdefault(dimension, sizes)
    return {tensor.name: written.get(tensor.name) or _filled(tensor, ranges, number) for tensor in inputs}


def _filled(tensor: GraphTensor, ranges: Mapping[str, Range], number: int) -> ShapeRange:
    sizes: list[Range] = []
    for axis, size in enumerate(tensor.shape):
        name = tensor.dimension_names[axis]
        if size < 0 and name not in ranges:
            raise BuildRefused(
                f"--shapes: profile {number} says nothing of input '{tensor.name}', whose axis {axis}{f' ({name})' if name else ''} varies"
            )
        sizes.append(_fixed(size) if size >= 0 else ranges[name])
    return _from_ranges(sizes)


def _check_shape(tensor: GraphTensor, shapes: ShapeRange) -> None:
    if len(shapes.min) != len(tensor.shape):
        raise BuildRefused(
            f"--shapes: input '{tensor.name}': wanted {len(tensor.shape)} dimensions ({_named(tensor)}), got {len(shapes.min)}"
        )
    for axis, size in enumerate(tensor.shape):
        sizes = (shapes.min[axis], shapes.opt[axis], shapes.max[axis])
        if size >= 0 and sizes != (size,) * 3:
            raise BuildRefused(
                f"--shapes: input '{tensor.name}' axis {axis}: wanted {size}, which is fixed in the model, got {_spelled(sizes)}"
            )


def _check_equal_names(inputs: Sequence[GraphTensor], profile: Profile, number: int) -> None:
    for name, places in shared_names(inputs).items():
        sizes = {
            place: (profile[place[0]].min[place[1]], profile[place[0]].opt[place[1]], profile[place[0]].max[place[1]]) for place in places
        }
        if len(set(sizes.values())) > 1:
            raise BuildRefused(
                f"--shapes: profile {number} gives dimensions named '{name}' different sizes; TensorRT takes equal names for equal sizes",
                [
                    *(f"  input '{tensor}' axis {axis}: {_spelled(size)}" for (tensor, axis), size in sizes.items()),
                    f"  Give them the same sizes, or say that they differ: --independent-dims {name}",
                ],
            )


def _language_model(inputs: Sequence[GraphTensor], past: set[str]) -> Suggestion:
    """Two profiles for a model with a key-value cache: one for a prompt without a past, one for a token after a past."""
    half = _CONTEXT // 2
    prefill = _token_profile(inputs, past, new=(1, half, _CONTEXT), old=(0, 0, 0))
    decode = _token_profile(inputs, past, new=(1, 1, 1), old=(1, half, _CONTEXT - 1))
    return Suggestion(
        (prefill, decode),
        (
            (
                f"a language model with a key-value cache: profile 0 is for prompts of up to {_CONTEXT} tokens without a past, "
                f"profile 1 for one token after 1 to {_CONTEXT - 1}"
            ),
            f"batch: {_spelled(_BATCH)}; write --shapes twice for longer texts or larger batches",
        ),
    )


def _token_profile(inputs: Sequence[GraphTensor], past: set[str], new: Range, old: Range) -> Profile:
    total: Range = (new[0] + old[0], new[1] + old[1], new[2] + old[2])
    tokens = {name for tensor in inputs if "input_ids" in tensor.name for name in tensor.dimension_names[1:]}
    profile: dict[str, ShapeRange] = {}
    for tensor in inputs:
        sizes: list[Range] = []
        for axis, size in enumerate(tensor.shape):
            name = tensor.dimension_names[axis]
            if size >= 0:
                sizes.append(_fixed(size))
            elif axis == 0:
                sizes.append(_BATCH)
            else:
                sizes.append(old if name in past else new if name in tokens else total)
        profile[tensor.name] = _from_ranges(sizes)
    return profile


def _guess(tensor: GraphTensor, axis: int) -> tuple[Range, str]:
    name = tensor.dimension_names[axis]
    if _BATCH_NAME.match(name) or (axis == 0 and not _SEQUENCE_NAME.search(name)):
        return _BATCH, "rows of a batch"
    if _is_image_side(tensor, axis):
        return _IMAGE_SIDE, "a side of an image: large sides take much memory"
    if _SEQUENCE_NAME.search(name):
        return _SEQUENCE, "the length of a sequence"
    return _OTHER, "nothing says what it is: better write --shapes"


def _is_image_side(tensor: GraphTensor, axis: int) -> bool:
    if len(tensor.shape) != 4:
        return False
    if tensor.shape[1] in _IMAGE_CHANNELS:
        return axis in (2, 3)
    return tensor.shape[3] in _IMAGE_CHANNELS and axis in (1, 2)


def _fixed(size: int) -> Range:
    return (size, size, size)


def _from_ranges(sizes: Sequence[Range]) -> ShapeRange:
    return ShapeRange(tuple(size[0] for size in sizes), tuple(size[1] for size in sizes), tuple(size[2] for size in sizes))


def _spelled(sizes: Range) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else f"{sizes[0]}..{sizes[1]}..{sizes[2]}"


def _named(tensor: GraphTensor) -> str:
    return "x".join(name or ("?" if size < 0 else str(size)) for size, name in zip(tensor.shape, tensor.dimension_names, strict=True))
