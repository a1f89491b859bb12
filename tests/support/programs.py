"""The project's programs as a user starts them, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
START_S = 45.0
"""How long a start may take on a busy machine before a test fails."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Returns when ``condition`` holds; fails naming ``what`` when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


class Program:
    """A running command; what it prints, both streams together, is in ``output``. Killed at the end of a ``with`` block.

    Its metrics take any port.
    """

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # Closed in __exit__.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TENSORGATE_")}
        environ |= {"PYTHONPATH": str(ROOT), "TENSORGATE_SERVER_METRICS_PORT": "0", **(env or {})}
        argv = [sys.executable, "-m", *arguments]
        self.process = subprocess.Popen(argv, env=environ, cwd=cwd, stdout=self._file, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything printed so far."""
        descriptor = self._file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def wait_for(self, text: str, timeout_s: float = START_S) -> None:
        """Returns when ``text`` was printed; fails when it was not, or the program ended first."""

        def printed() -> bool:
            if self.process.poll() is not None and text not in self.output:
                raise AssertionError(f"ended with {self.process.returncode} before {text!r}:\n{self.output}")
            return text in self.output

        try:
            wait_until(printed, text, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from error

    def wait(self, timeout_s: float = START_S) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the program alone."""
        self.process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # SIGKILL: children that outlive it are a failure of their own, found by the tests of that.
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        self._file.close()


def descendants(pid: int) -> dict[int, str]:
    """The children of a process and theirs, by pid, with their command lines."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, IndexError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found |= descendants(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def write_identity_model(repository: Path, name: str, datatype: str = "FP32", shape: str = "[-1, 4]", delay_ms: int = 0) -> None:
    """A model that answers its input X as Y, after ``delay_ms``."""
    (repository / name / "1").mkdir(parents=True)
    lines = [
        'backend = "identity"',
        "[warmup]\ncount = 0",
        f"[identity]\ndelay_ms = {delay_ms}",
        f'[input.X]\ndatatype = "{datatype}"\nshape = {shape}',
    ]
    (repository / name / "model.toml").write_text("\n".join(lines))
