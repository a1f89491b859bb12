"""``tensorgate build``: flags to a build, its progress on standard error, and a summary."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core_grpc.backends.tensorrt.build.options import BuildRequest
    from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata

FLAVOURS = {"auto": "auto", "tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
PRECISIONS = ("fp32", "fp16", "int8", "int8-weights")


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
    """Builds. Gives the exit code: 0, 1 without a plan, 2 for a wrong flag, 130 when cancelled."""
    # The libraries are imported here: the other commands need none of them.
    try:
        from core_grpc.backends.tensorrt.build import builder, failures, options  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.stderr.write(f"tensorgate build needs {error.name}: pip install 'tensorgate[build]'\n")
        return 1
    from core_grpc.backends.tensorrt.machine import this_machine  # noqa: PLC0415

    machine = this_machine()
    try:
        request = _request(args)
        bindings = options.choose_flavour(FLAVOURS[args.flavour], machine)
        options.check_request(bindings, request, machine)
        with _observer() as observer, _converted(args, request) as converted:
            metadata = builder.build_plan(bindings, converted, machine, observer)
    except failures.BuildRefused as refusal:
        sys.stderr.write("\n".join((f"tensorgate build: {refusal}", *refusal.details)) + "\n")
        return 1
    except failures.BuildCancelled as cancelled:
        sys.stderr.write(f"tensorgate build: {cancelled}\n")
        return 130
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
def _converted(args: argparse.Namespace, request: BuildRequest) -> Iterator[BuildRequest]:
    """The request with the file in the precision that was asked for, which is there as long as the context."""
    if args.precision in (None, "fp32"):
        if args.data is not None:
            raise _refused("--data is for --precision int8")
        yield request
        return
    from core_grpc.errors import InvalidArgument  # noqa: PLC0415
    from core_grpc.precision.calibration import read_samples  # noqa: PLC0415
    from core_grpc.precision.conversion import Precision, convert  # noqa: PLC0415

    _check_convertible(args)
    with tempfile.TemporaryDirectory(prefix="tensorgate-build-") as folder:
        model = Path(folder) / args.model.name
        try:
            convert(args.model, model, Precision(args.precision), read_samples(args.data) if args.data else None)
        except InvalidArgument as error:
            raise _refused(f"--precision {args.precision}: {error}") from None
        yield replace(request, model=model, source=args.model, precision=None)


def _check_convertible(args: argparse.Namespace) -> None:
    """Only FP32 files are converted, and only INT8 takes data.

    Raises:
        BuildRefused: it is another.
    """
    from core_grpc.backends.tensorrt.build.onnx_model import read_model  # noqa: PLC0415

    found = read_model(args.model).precision
    if found != "fp32":
        raise _refused(f"--precision {args.precision}: wanted a file in fp32, got {args.model.name} in {found}: leave the flag out")
    if (args.data is None) is (args.precision == "int8"):
        wanted = "int8 is calibrated: name real data with --data" if args.data is None else "--data is for int8"
        raise _refused(f"--precision {args.precision}: {wanted}")


def _refused(text: str) -> Exception:
    from core_grpc.backends.tensorrt.build.failures import BuildRefused  # noqa: PLC0415

    return BuildRefused(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class _Display:
    """A ``BuildObserver`` that draws bars on standard error, one for each phase that is open, and watches for Ctrl-C."""

    def __init__(self, progress: Any, write: Callable[[str], None]) -> None:
        self._progress = progress
        self._write = write
        self._open: list[tuple[str, Any]] = []
        self._is_cancelled = False

    def cancel(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of SIGINT. The builder asks at its next step; a second Ctrl-C ends the process."""
        self._is_cancelled = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def phase_started(self, name: str, parent: str | None, steps: int) -> None:
        """Draws a bar below those of the phases around it."""
        depth = len(self._open) if parent is not None else 0
        self._open.append((name, self._progress.add_task("  " * depth + name, total=steps)))

    def step_done(self, name: str, step: int) -> None:
        """Moves the innermost bar of that name."""
        for open_name, task in reversed(self._open):
            if open_name == name:
                self._progress.update(task, completed=step + 1)
                return

    def phase_finished(self, name: str) -> None:
        """Takes the bar away."""
        for index in range(len(self._open) - 1, -1, -1):
            if self._open[index][0] == name:
                self._progress.remove_task(self._open.pop(index)[1])
                return

    def note(self, text: str) -> None:
        """One line above the bars."""
        self._write(text)

    def is_cancelled(self) -> bool:
        """Whether there was a Ctrl-C."""
        return self._is_cancelled


@contextmanager
def _observer() -> Iterator[_Display]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        display = _Display(progress, lambda text: console.print(text, markup=False, soft_wrap=True))
        previous = signal.signal(signal.SIGINT, display.cancel)
        try:
            yield display
        finally:
            signal.signal(signal.SIGINT, previous)


def _report(plan: Path, metadata: PlanMetadata, *, as_json: bool) -> None:
    from core_grpc.backends.tensorrt.build.repository_entry import join_repository  # noqa: PLC0415
    from core_grpc.backends.tensorrt.description import described  # noqa: PLC0415
    from core_grpc.backends.tensorrt.plan_metadata import as_json as json_of  # noqa: PLC0415

    try:
        lines: Sequence[str] = join_repository(plan, metadata)
    except OSError as error:
        lines = (f"model.toml cannot be written: {error.strerror}",)
    if as_json:
        sys.stdout.write(json.dumps(json_of(metadata), indent=1, ensure_ascii=False) + "\n")
        return
    ending = "Plans are built and inspected; this version of tensorgate does not serve them yet."
    sys.stdout.write("\n".join((f"Built {plan}", *described(metadata), *lines, ending)) + "\n")
