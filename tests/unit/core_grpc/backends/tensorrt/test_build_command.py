"""``tensorgate build`` where something is in its way: signals at any moment, disks that are full, places that cannot be written."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from core_grpc.backends.tensorrt.bindings import Bindings
from core_grpc.backends.tensorrt.build.options import choose_flavour
from core_grpc.backends.tensorrt.machine import Machine
from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, mismatches, read_metadata, write_metadata
from tensorgate.build_display import Display, Interrupts
from tensorgate.cli import main
from tests.support.programs import ROOT

DIGITS = ROOT / "tests" / "data" / "precision" / "digits_cnn.onnx"
CLASSIFIER = ROOT / "tensorgate" / "demo_models" / "efficientnet_lite0" / "1" / "model.onnx"
COMMAND = (sys.executable, "-m", "tensorgate", "build")


def build(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False, **options)


@pytest.fixture
def scratch(tmp_path: Path) -> Mapping[str, str]:
    """An environment whose temporary directory is known, and empty."""
    (tmp_path / "scratch").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "scratch")}


def left_in(scratch: Mapping[str, str]) -> list[str]:
    # ONNX Runtime keeps a file of its own there.
    return [name for name in os.listdir(scratch["TMPDIR"]) if name != ".ses"]  # noqa: PTH208


def calibrated(tmp_path: Path) -> list[str]:
    """The classifier in INT8: some seconds of conversion, then some of building."""
    np.savez(tmp_path / "data.npz", input=np.random.default_rng(0).standard_normal((16, 3, 224, 224)).astype(np.float32))
    return [str(CLASSIFIER), "--precision", "int8", "--data", str(tmp_path / "data.npz"), "-o", str(tmp_path / "new" / "model" / "1")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_conversion_at_once(tmp_path: Path, scratch: Mapping[str, str], number: int, code: int) -> None:
    command = [*COMMAND, *calibrated(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, env=scratch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "converting model.onnx to int8, calibrated with data.npz\n"
        time.sleep(0.3)
        os.kill(process.pid, number)
        time.sleep(0.01)
        os.kill(process.pid, number)  # Whoever is impatient presses twice.
        _, said = process.communicate(timeout=40)
    # Where all was tidied up already, the second one ends the process as it ends any.
    assert process.returncode in (code, -number), said
    assert said.endswith("tensorgate build: the build was cancelled; nothing was written\n")
    assert "Traceback" not in said
    assert not (tmp_path / "new").exists()
    assert left_in(scratch) == []


def test_ctrl_c_at_any_moment_leaves_a_whole_plan_or_the_one_that_was_there(tmp_path: Path) -> None:
    version = tmp_path / "1"
    assert build(DIGITS, "-o", version).returncode == 0
    codes = []
    for moment in np.linspace(0.1, 1.0, 10):
        before = (version / "model.plan").read_bytes()
        with subprocess.Popen(
            [*COMMAND, str(DIGITS), "-o", str(version), "--precision", "fp16"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(float(moment))
            process.send_signal(signal.SIGINT)
            codes.append(process.wait(timeout=40))
        plan = version / "model.plan"
        # The others are Python's own, where the signal comes before the command has begun (the import of a library fails then, or aborts)
        # or behind its end.
        assert codes[-1] in (0, 130, 1, -signal.SIGINT, -signal.SIGABRT)
        assert not mismatches(plan, read_metadata(plan)), f"after a SIGINT at {moment:.1f} s"
        assert codes[-1] != 130 or plan.read_bytes() == before
        assert sorted(path.name for path in version.iterdir()) == ["model.plan", "model.plan.json"]
    assert set(codes) != {0}


def test_a_signal_while_libraries_load_waits_until_they_have(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside of their loading may abort the process."""
    loaded = []

    def slow(name: str, machine: Machine) -> Bindings:
        os.kill(os.getpid(), signal.SIGINT)
        loaded.append(name)
        return choose_flavour(name, machine)

    monkeypatch.setattr("core_grpc.backends.tensorrt.build.options.choose_flavour", slow)
    assert main(["build", str(DIGITS), "-o", "nowhere"]) == 130
    assert loaded == ["auto"]
    assert capsys.readouterr().err == "tensorgate build: the build was cancelled; nothing was written\n"


def test_ctrl_c_while_the_plan_is_written_lets_it_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: Path, metadata: PlanMetadata) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write_metadata(plan, metadata)

    monkeypatch.setattr("core_grpc.backends.tensorrt.plan_metadata.write_metadata", interrupted)
    assert main(["build", str(DIGITS), "-o", str(tmp_path / "1")]) == 0
    plan = tmp_path / "1" / "model.plan"
    assert not mismatches(plan, read_metadata(plan))


@pytest.mark.parametrize("arguments", [(), ("--precision", "fp16")], ids=["plan", "conversion"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, scratch: Mapping[str, str], arguments: tuple[str, ...]) -> None:
    """The limit of a file's size stands for it: the same call fails, with another number."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = build(DIGITS, "-o", tmp_path / "new" / "1", *arguments, env=scratch, preexec_fn=small_files)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tensorgate build: ")
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()
    assert left_in(scratch) == []


def test_a_place_that_cannot_be_written_is_refused_before_the_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "model.plan").mkdir(parents=True)
    for place, wanted in (
        ("file/1", f"{tmp_path}/file is no directory"),
        ("file", f"{tmp_path}/file is no directory"),
        ("taken", "model.plan is a directory, and the plan would be a file of that name"),
    ):
        done = build(DIGITS, "-o", tmp_path / place)
        assert done.returncode == 1
        assert wanted in done.stderr
        assert "suggested" not in done.stderr, "the build had begun"
        assert len(done.stderr.splitlines()) == 1


def test_a_directory_without_the_right_to_write_is_refused_before_the_build(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    if os.access(closed, os.W_OK):  # Root may; but nobody may here.
        closed = Path("/proc/self")
    done = build(DIGITS, "-o", closed / "1")
    assert done.returncode == 1
    assert "no right to write in" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_cannot_be_converted_is_refused_in_one_line(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    onnx.save(model, tmp_path / "there.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "cache").mkdir()
    for name in ("there.onnx", "weights.bin"):
        (tmp_path / "cache" / name).symlink_to(tmp_path / name)
    linked = tmp_path / "cache" / "there.onnx"
    done = build(linked, "-o", tmp_path / "1", "--precision", "fp16")
    assert done.returncode == 1
    assert "tensorgate build: --precision fp16: there.onnx cannot be converted: " in done.stderr.splitlines()[-1]
    assert "symbolic link" in done.stderr
    # As it is, it is built: that is how the caches look that models are downloaded to.
    assert build(linked, "-o", tmp_path / "1").returncode == 0
    source = read_metadata(tmp_path / "1" / "model.plan").source
    assert list(source.external_sha256) == ["weights.bin"]
    assert source.size_bytes > (tmp_path / "weights.bin").stat().st_size


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_damaged_model_is_not_converted_and_told_in_the_words_of_onnx(tmp_path: Path, precision: str) -> None:
    model = onnx.load(DIGITS)
    model.graph.node[0].input[0] = "lost"
    onnx.save(model, tmp_path / "damaged.onnx")
    np.savez(tmp_path / "data.npz", image=np.zeros((4, 1, 8, 8), np.float32))
    data = ["--data", tmp_path / "data.npz"] if precision == "int8" else []
    done = build(tmp_path / "damaged.onnx", "-o", tmp_path / "1", "--precision", precision, *data)
    assert done.returncode == 1
    assert "no valid ONNX model: Nodes in a graph must be topologically sorted, however input 'lost'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "/tmp/ort" not in done.stderr


def test_a_model_that_is_too_large_to_be_converted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    onnx.save(onnx.load(DIGITS), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    os.truncate(tmp_path / "weights.bin", 3 << 30)  # A hole: the disk holds nothing of it.
    done = build(path, "-o", tmp_path / "1", "--precision", "fp16")
    assert done.returncode == 1
    assert f"at most {(2 << 30) - (1 << 20)} can be converted here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_memory_that_is_reported_is_the_builds_own(tmp_path: Path) -> None:
    large = b"x" * (600 << 20)  # A program inherits its parent's largest size where that is asked for by getrusage.
    assert build(DIGITS, "-o", tmp_path / "1").returncode == 0
    assert 50_000_000 < read_metadata(tmp_path / "1" / "model.plan").peak_host_bytes < len(large)


def test_bars_are_drawn_on_a_terminal_and_gone_in_the_end(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, str(CLASSIFIER), "-o", str(tmp_path / "1")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # Linux tells the end of a terminal so.
            pass
        process.communicate(timeout=40)
    os.close(ours)
    assert process.returncode == 0
    assert b"Building engine" in seen
    assert seen.rstrip().endswith((b"\x1b[2K", b"\x1b[?25h", b"\x1b[1A\x1b[2K"))


def test_without_a_terminal_a_line_says_now_and_then_where_the_build_is() -> None:
    lines: list[str] = []
    times = iter([0.0, 1.0, 2.0, 12.0, 13.0, 30.0])
    display = Display(None, lines.append, Interrupts(), clock=lambda: next(times))
    display.phase_started("Building engine", None, 2)
    display.phase_started("Timing", "Building engine", 9)
    for step in range(2):
        display.step_done("Timing", step)
    display.phase_finished("Timing")
    display.step_done("Building engine", 0)
    assert lines == ["12 s: Building engine > Timing", "30 s: Building engine"]
