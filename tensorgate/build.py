"""``tensorgate build``: flags to a build, its progress on standard error, and a summary."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensorgate.build_display import Display, Interrupts, displayed

if TYPE_CHECKING:
    from core_grpc.backends.tensorrt.build.options import BuildRequest
    from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata

FLAVOURS = {"auto": "auto", "tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
PRECISIONS = ("fp32", "fp16", "int8", "int8-weights")
LARGEST_CONVERTED_BYTES = (2 << 30) - (1 << 20)
"""A converted model is one protobuf message, which has at most 2 GiB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.description = (
        "Builds a TensorRT plan from an ONNX file, and writes it with its metadata (model.plan, model.plan.json). With TensorRT-RTX no GPU "
        "is needed. Plans are not served yet: docs/tensorrt.md."
    )
    parser.add_argument("model", metavar="MODEL.onnx", type=Path, help="the ONNX file")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="DIRECTORY", help="a version's directory, REPOSITORY/MODEL/1/, or a file *.plan"
    )
    parser.add_argument(
        "--shapes",
        action="append",
        default=[],
        metavar="INPUT:MIN..OPT..MAX",
        help="an optimization profile, such as input:1x3x224x224..4x3x224x224..8x3x224x224; inputs joined by commas; "
        "again for another profile (default: suggested, and shown)",
    )
    parser.add_argument(
        "--independent-dims", default="", metavar="NAMES", help="dimensions of these names differ, although their names are equal"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="convert an fp32 file to it first; fp32 wants a file that is (default: as the file is)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE.npz", help="for int8: real data to calibrate with, an array [samples, ...] for each input"
    )
    parser.add_argument(
        "--flavour", choices=list(FLAVOURS), default="auto", help="which TensorRT builds (default auto: tensorrt with a GPU, else rtx)"
    )
    parser.add_argument(
        "--target", default="", metavar="LIST", help="compute capabilities to build for, such as 8.6,8.9, or current (TensorRT-RTX)"
    )
    parser.add_argument("--workspace", default="1GiB", metavar="SIZE", help="memory that a layer may use to work in (default 1GiB)")
    parser.add_argument("--optimization-level", type=int, choices=range(6), default=3, help="0 builds fastest, 5 tries most (default 3)")
    parser.add_argument(
        "--timing-cache", type=Path, metavar="FILE", help="kept and used again (default: one in the user's cache directory)"
    )
    parser.add_argument("--hardware-compatible", choices=("ampere+", "same"), default="", help="run on other GPUs as well (full TensorRT)")
    parser.add_argument("--version-compatible", action="store_true", help="run on later versions and the lean runtime (full TensorRT)")
    parser.add_argument("--refit", action="store_true", help="weights can be replaced later")
    parser.add_argument("--strip-weights", action="store_true", help="leave the weights out of the plan")
    parser.add_argument("--plugin", action="append", default=[], type=Path, metavar="FILE", help="a library of plugins; may be repeated")
    parser.add_argument("--json", action="store_true", help="print the metadata as JSON instead of a summary")


def run(args: argparse.Namespace) -> int:
    """Builds. Gives the exit code: 0, 1 without a plan, 2 for a wrong flag, 130 or 143 when Ctrl-C or SIGTERM ended it."""
    interrupts = Interrupts()
    with interrupts.handled():
        try:
            return _run(args, interrupts)
        except KeyboardInterrupt:
            sys.stderr.write("tensorgate build: the build was cancelled; nothing was written\n")
            return interrupts.exit_code


def _run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    # The libraries are imported here: the other commands need none of them.
    try:
        with interrupts.waiting():
            from core_grpc.backends.tensorrt.build import builder, failures, options  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"tensorgate build needs {error.name}: pip install 'tensorgate[rtx,build]', which takes no GPU, "
            "or 'tensorgate[tensorrt,build]'\n"
        )
        return 1
    from core_grpc.backends.tensorrt.build.output import check_output  # noqa: PLC0415
    from core_grpc.backends.tensorrt.machine import this_machine  # noqa: PLC0415

    machine = this_machine()
    try:
        request = _request(args)
        with interrupts.waiting():
            bindings = options.choose_flavour(FLAVOURS[args.flavour], machine)
        # Seen before the conversion, which may take longer than the build.
        options.check_request(bindings, request, machine)
        check_output(request.plan)
        with displayed(interrupts) as display, _converted(args, request, display, interrupts) as converted:
            interrupts.note_only()
            metadata = builder.build_plan(bindings, converted, machine, display)
    except failures.BuildRefused as refusal:
        sys.stderr.write("\n".join((f"tensorgate build: {refusal}", *refusal.details)) + "\n")
        return 1
    except failures.BuildCancelled:
        raise KeyboardInterrupt from None
    _report(request.plan, metadata, as_json=args.json)
    return 0


def _request(args: argparse.Namespace) -> BuildRequest:
    from core_grpc.backends.tensorrt.build.failures import BuildRefused  # noqa: PLC0415
    from core_grpc.backends.tensorrt.build.options import BuildRequest, parse_size  # noqa: PLC0415
    from core_grpc.backends.tensorrt.build.profiles import parse_profile  # noqa: PLC0415

    try:
        workspace = parse_size(args.workspace)
    except ValueError as error:
        raise BuildRefused(f"--workspace: {error}") from None
    return BuildRequest(
        model=args.model,
        plan=args.output if args.output.suffix == ".plan" else args.output / "model.plan",
        profiles=tuple(parse_profile(text) for text in args.shapes),
        independent_dimensions=_names(args.independent_dims),
        precision="fp32" if args.precision == "fp32" else None,
        targets=_names(args.target),
        workspace_bytes=workspace,
        optimization_level=args.optimization_level,
        hardware_compatibility=args.hardware_compatible,
        version_compatible=args.version_compatible,
        refit=args.refit,
        strip_weights=args.strip_weights,
        plugins=tuple(args.plugin),
        timing_cache=args.timing_cache,
    )


@contextmanager
def _converted(args: argparse.Namespace, request: BuildRequest, display: Display, interrupts: Interrupts) -> Iterator[BuildRequest]:
    """The request with the file in the precision that was asked for, which is there as long as the context."""
    if args.precision in (None, "fp32"):
        if args.data is not None:
            raise _refused("--data is for --precision int8")
        yield request
        return
    _check_convertible(args)
    with interrupts.waiting():
        importlib.import_module("core_grpc.precision.conversion")
    with _scratch() as folder:
        model = folder / args.model.name
        _convert(args, model, display)
        yield replace(request, model=model, source=args.model, precision=None)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory for the converted file, and for what the converters put down and may leave behind when they are interrupted."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="tensorgate-build-")
    except OSError as error:
        raise _refused(f"the converted file has no place: {error}") from None
    before = tempfile.tempdir
    with folder as path:
        tempfile.tempdir = path
        try:
            yield Path(path)
        finally:
            tempfile.tempdir = before


def _convert(args: argparse.Namespace, model: Path, display: Display) -> None:
    """Writes the model in another precision to ``model``.

    Raises:
        BuildRefused: it cannot be converted, or not be written.
    """
    from core_grpc.backends.tensorrt.build.onnx_model import checker_says  # noqa: PLC0415
    from core_grpc.errors import InvalidArgument  # noqa: PLC0415
    from core_grpc.precision.calibration import read_samples  # noqa: PLC0415
    from core_grpc.precision.conversion import Precision, convert  # noqa: PLC0415
    from core_grpc.precision.failures import LIBRARY_FAILURES  # noqa: PLC0415

    display.note(f"converting {args.model.name} to {args.precision}{f', calibrated with {args.data.name}' if args.data else ''}")
    # What the converters log are their own steps, and tracebacks of failures that are told below.
    logging.disable()
    try:
        convert(args.model, model, Precision(args.precision), read_samples(args.data) if args.data else None)
    except InvalidArgument as error:
        raise _refused(f"--precision {args.precision}: {error}") from None
    except OSError as error:
        raise _refused(f"--precision {args.precision}: {error.strerror or error} (the converted file lies in {model.parent})") from None
    except LIBRARY_FAILURES as error:
        fault = checker_says(args.model)
        why = f"it is no valid ONNX model: {fault}" if fault else _first_line(error)
        raise _refused(f"--precision {args.precision}: {args.model.name} cannot be converted: {why}") from None
    finally:
        logging.disable(logging.NOTSET)


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__


def _check_convertible(args: argparse.Namespace) -> None:
    """Only FP32 files are converted, and only INT8 takes data.

    Raises:
        BuildRefused: it is another.
    """
    from core_grpc.backends.tensorrt.build.onnx_model import read_model  # noqa: PLC0415

    found = read_model(args.model)
    if found.precision != "fp32":
        raise _refused(
            f"--precision {args.precision}: wanted a file in fp32, got {args.model.name} in {found.precision}: leave the flag out"
        )
    if found.size_bytes > LARGEST_CONVERTED_BYTES:
        raise _refused(
            f"--precision {args.precision}: {args.model.name} has {found.size_bytes} bytes with its data, and at most "
            f"{LARGEST_CONVERTED_BYTES} can be converted here: convert it where it was exported, and leave the flag out"
        )
    if (args.data is None) is (args.precision == "int8"):
        wanted = "int8 is calibrated: name real data with --data" if args.data is None else "--data is for int8"
        raise _refused(f"--precision {args.precision}: {wanted}")


def _refused(text: str) -> Exception:
    from core_grpc.backends.tensorrt.build.failures import BuildRefused  # noqa: PLC0415

    return BuildRefused(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _report(plan: Path, metadata: PlanMetadata, *, as_json: bool) -> None:
    from core_grpc.backends.tensorrt.build.repository_entry import join_repository  # noqa: PLC0415
    from core_grpc.backends.tensorrt.description import described  # noqa: PLC0415
    from core_grpc.backends.tensorrt.plan_metadata import as_json as json_of  # noqa: PLC0415

    try:
        lines: Sequence[str] = join_repository(plan, metadata)
    except OSError as error:
        lines = (f"model.toml cannot be written: {error.strerror}",)
    if as_json:
        sys.stdout.write(json.dumps(json_of(metadata), indent=1) + "\n")
        return
    ending = "Plans are built and inspected; this version of tensorgate does not serve them yet."
    sys.stdout.write("\n".join((f"Built {plan}", *described(metadata), *lines, ending)) + "\n")
