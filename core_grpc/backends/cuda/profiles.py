"""Which optimization profile runs a batch: by the shapes of its inputs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from core_grpc.errors import InvalidArgument

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """The shapes that a profile allows for one input, each dimension from ``least`` to ``most``."""

    least: Shape
    best: Shape
    """What the engine was tuned for."""
    most: Shape

    def allows(self, shape: Shape) -> bool:
        """Whether the shape is within the range."""
        return len(shape) == len(self.least) and all(
            least <= size <= most for least, size, most in zip(self.least, shape, self.most, strict=True)
        )

    def __str__(self) -> str:
        return f"{_text(self.least)} to {_text(self.most)}"


@dataclass(frozen=True, slots=True)
class Profile:
    """An optimization profile; an input without a range may have any shape."""

    ranges: Mapping[str, ShapeRange] = field(default_factory=dict)

    def allows(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether a batch with these inputs can be run under it."""
        return all(name not in self.ranges or self.ranges[name].allows(shape) for name, shape in shapes.items())

    def distance(self, shapes: Mapping[str, Shape]) -> float:
        """How far the batch is from what the profile was tuned for: 0 where it is the same, in elements on a logarithmic scale."""
        return sum(
            abs(math.log(max(math.prod(shape), 1) / max(math.prod(self.ranges[name].best), 1)))
            for name, shape in shapes.items()
            if name in self.ranges
        )


def choose_profile(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> int:
    """The place of the profile to run inputs of these shapes: of those that allow them the one that is nearest to what it was tuned for,
    and the first of those that are as near.

    Raises:
        InvalidArgument: none allows them; the text names the first input that is outside, and what is allowed.
    """
    allowed = [index for index, profile in enumerate(profiles) if profile.allows(shapes)]
    if not allowed:
        raise _outside(profiles, shapes)
    return min(allowed, key=lambda index: profiles[index].distance(shapes))


def _outside(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> InvalidArgument:
    for name, shape in shapes.items():
        ranges = [profile.ranges[name] for profile in profiles if name in profile.ranges]
        if len(ranges) == len(profiles) and not any(item.allows(shape) for item in ranges):
            return InvalidArgument(f"input '{name}': wanted a shape from {' or '.join(map(str, ranges))}, got {_text(shape)}")
    together = ", ".join(f"{name} {_text(shape)}" for name, shape in shapes.items())
    return InvalidArgument(f"inputs: wanted shapes that one optimization profile allows together, got {together}")


def _text(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"
