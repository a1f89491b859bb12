"""A model's process as the server sees it: started in a scrubbed environment, its output in the server's log, ended for certain."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from core_grpc.backends.python.framing import packed, receive, send
from core_grpc.errors import ModelLoadFailed, one_line

_log = logging.getLogger(__name__)

INTERPRETER = "TENSORGATE_INTERPRETER"
"""Set where ``sys.executable`` is not this Python: inside an Envoy."""

_ROOT = Path(__file__).resolve().parents[3]
_KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""What of the server's environment a model sees: nothing that could be a secret."""
_LINE_CHARACTERS = 1000
_LINES_PER_S = 100
_END_S = 5.0
"""How long a process may take to finalise."""


@dataclass(frozen=True, slots=True)
class ProcessOrder:
    """What a process is started with."""

    name: str
    """``model/version/instance``, for log lines."""
    first_message: Mapping[str, Any]
    environment: tuple[str, ...]
    """Names of variables that are passed on, besides those that every process gets."""
    start_timeout_s: float


class ModelProcess:
    """One process, from started to gone."""

    def __init__(self, order: ProcessOrder) -> None:
        """Starts it and waits until its model is initialised; blocks.

        Raises:
            ModelLoadFailed: it is not; the text says why.
        """
        self._is_reaped = False
        self.connection, theirs = socket.socketpair()
        interpreter = os.environ.get(INTERPRETER, sys.executable)
        command = [interpreter, "-P", "-m", "core_grpc.backends.python.child", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                command,
                env=_environment(order.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        if self._process.stdout is not None:
            threading.Thread(target=_log_lines, args=(order.name, self._process.stdout), name=f"{order.name} log", daemon=True).start()
        try:
            self._wait_until_ready(order)
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self, order: ProcessOrder) -> None:
        self.connection.settimeout(order.start_timeout_s)
        try:
            send(self.connection, packed(order.first_message))
            answer = receive(self.connection).header
        except TimeoutError:
            raise ModelLoadFailed(f"model.py was not initialised within {order.start_timeout_s:g} s") from None
        except (EOFError, OSError):
            raise ModelLoadFailed(f"the process of model.py {self.ending()} while it was initialised; its output is in the log") from None
        if answer["type"] != "ready":
            raise ModelLoadFailed(f"model.py: {one_line(str(answer['message']))}")
        self.connection.settimeout(None)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether it is gone, whoever may still hold its socket."""
        return self._process.poll() is not None

    def ending(self) -> str:
        """How it ended, for an error text; waits a moment for the end."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    def close(self) -> None:
        """Lets it finalise, then makes sure that it is gone; idempotent."""
        try:
            self.connection.settimeout(_END_S)
            send(self.connection, packed({"type": "close"}))
            self._process.wait(timeout=_END_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill_soon(self) -> None:
        """Begins to end it; does not wait."""
        if not self._is_reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends it at once, with whatever it has started; idempotent."""
        self.kill_soon()
        self._is_reaped = True
        self._process.wait()
        self.connection.close()


def _environment(names: Sequence[str]) -> dict[str, str]:
    passed = {name: os.environ[name] for name in (*_KEPT, *names) if name in os.environ}
    # Ours must be found wherever it was started from; -P keeps the working directory out.
    return {**passed, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _log_lines(name: str, output: IO[bytes]) -> None:
    """Writes what the process prints to the log, at most so many lines a second, for as long as it lives."""
    second, lines, dropped = 0, 0, 0
    with output:
        while line := output.readline(1 << 16):
            now = int(time.monotonic())
            if now != second:
                if dropped:
                    _log.warning("model %s: %d lines were not logged", name, dropped)
                second, lines, dropped = now, 0, 0
            lines += 1
            if lines > _LINES_PER_S:
                dropped += 1
            else:
                _log.info("model %s: %s", name, one_line(line.decode("utf-8", "replace").rstrip(), _LINE_CHARACTERS))
