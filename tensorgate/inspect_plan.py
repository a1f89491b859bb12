"""``tensorgate inspect``: what is known of a plan, from the metadata beside it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

_PLAN = "model.plan"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.description = "Shows the metadata of a TensorRT plan, as `tensorgate build` wrote them: a plan says nothing without its GPU."
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan, or the directory that has model.plan")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


_KINDS = ((b"", "an empty file"), (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` where it came from"))
_HEAD_BYTES = 64
_SHOWN = 3
"""Plans that are named where another was asked for."""


def _plans_below(directory: Path) -> str:
    """Where plans are, in a model's directory or a repository; "" where there are none."""
    found = sorted(path for pattern in ("*/", "*/*/") for path in directory.glob(pattern + _PLAN))
    if not found:
        return ""
    shown = ", ".join(str(path) for path in found[:_SHOWN])
    return f"; there is {shown}{', …' if len(found) > _SHOWN else ''}"


def _other_kind(plan: Path) -> str:
    """What a file is that is no plan for certain; "" where it may be one."""
    if plan.suffix == ".onnx":
        return "an ONNX file: `tensorgate build` makes a plan of it"
    try:
        with plan.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    return next((kind for start, kind in _KINDS if head == start or (start and head.startswith(start))), "")


def run(args: argparse.Namespace) -> int:
    """Shows it. Gives the exit code: 0, 1 where there are no metadata or they are another plan's."""
    # The other commands need none of it.
    from core_grpc.backends.tensorrt.description import described  # noqa: PLC0415
    from core_grpc.backends.tensorrt.plan_metadata import PlanMetadataError, as_json, mismatches, read_metadata  # noqa: PLC0415

    plan: Path = args.plan / _PLAN if args.plan.is_dir() else args.plan
    if not plan.is_file():
        sys.stderr.write(f"tensorgate inspect: {plan}: there is no such file{_plans_below(args.plan)}\n")
        return 1
    if kind := _other_kind(plan):
        sys.stderr.write(f"tensorgate inspect: {plan.name}: wanted a TensorRT plan, got {kind}\n")
        return 1
    try:
        metadata = read_metadata(plan)
        wrong = mismatches(plan, metadata)
    except PlanMetadataError as error:
        sys.stderr.write(f"tensorgate inspect: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"tensorgate inspect: {plan} cannot be read: {error.strerror}\n")
        return 1
    if args.json:
        sys.stdout.write(json.dumps(as_json(metadata), indent=1) + "\n")
    else:
        sys.stdout.write("\n".join((str(plan), *described(metadata))) + "\n")
    for line in wrong:
        sys.stderr.write(f"tensorgate inspect: these are not the metadata of this plan: {line}\n")
    return 1 if wrong else 0
