"""A child process of the supervisor: started so that it cannot outlive its parent, heard by a notify socket, told by a control pipe.

The protocol is sd_notify outwards (``READY=1``, ``STATUS=…``, ``STOPPING=1``, ``X_DRAINED=1`` on the datagram socket ``NOTIFY_SOCKET``) and
one pipe inwards (``TENSORGATE_CONTROL_FD``: the lines ``drain`` and ``drain now``; its end means that the parent is gone).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 8192
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

# Elsewhere than on Linux a program that does not watch the control pipe gets a watcher: a shell that waits for the pipe's end and
# then kills the process it has become by exec.
_WATCHED = '(cat "/dev/fd/$TENSORGATE_CONTROL_FD"; kill -KILL $$) >/dev/null 2>&1 & exec "$@"'


@dataclass(frozen=True, slots=True)
class Command:
    """What to run."""

    argv: Sequence[str]
    env: Mapping[str, str]
    watches_control: bool = True
    """Whether the program itself ends when the control pipe does."""


class Child:
    """A running child. Belongs to the event loop that started it."""

    def __init__(self, process: asyncio.subprocess.Process, control: int, listener: socket.socket, output: IO[bytes]) -> None:
        self.said_ready = asyncio.Event()
        self.said_drained = asyncio.Event()
        self.exited = asyncio.Event()
        self.on_status: Callable[[str], None] = lambda _: None
        self._process = process
        self._control = control
        self._listener = listener
        self._output = output
        self._tail = b""
        self._watch = asyncio.create_task(self._run())
        asyncio.get_running_loop().add_reader(listener, self._heard)

    @classmethod
    async def start(cls, name: str, command: Command, directory: Path, output: IO[bytes]) -> Child:
        """Starts a command; its notify socket is made in ``directory``, what it prints is copied to ``output``.

        Raises:
            OSError: the program cannot be run.
        """
        listener = _notify_socket(directory / f"{name}.notify")
        reading, writing = os.pipe()
        env = {**command.env, "NOTIFY_SOCKET": listener.getsockname(), "TENSORGATE_CONTROL_FD": str(reading)}
        argv = list(command.argv)
        if _LIBC is None and not command.watches_control:
            argv = ["/bin/sh", "-c", _WATCHED, name, *argv]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(reading,),
                # Ctrl-C in a terminal goes to the whole process group: only the supervisor shall get it.
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()) if _LIBC else None,
            )
        except OSError:
            os.close(writing)
            listener.close()
            raise
        finally:
            os.close(reading)
        return cls(process, writing, listener, output)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.returncode

    @property
    def tail(self) -> str:
        """The last of what it printed."""
        return self._tail.decode(errors="replace")

    def ask_to_drain(self, *, with_notice: bool) -> None:
        """Writes ``drain`` to its control pipe, or ``drain now`` where nobody in front has to notice."""
        with suppress(OSError):
            os.write(self._control, b"drain\n" if with_notice else b"drain now\n")

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _run(self) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(1 << 16):
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            # Whoever read our output may have gone (`| head`): the child still has to be waited for.
            with suppress(OSError):
                self._output.write(data)
                self._output.flush()
        await self._process.wait()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        os.close(self._control)
        self.exited.set()

    def _heard(self) -> None:
        with suppress(BlockingIOError):
            lines = self._listener.recv(1 << 16).decode(errors="replace").splitlines()
            for key, _, value in (line.partition("=") for line in lines):
                if key == "READY":
                    self.said_ready.set()
                elif key == "X_DRAINED":
                    self.said_drained.set()
                elif key == "STATUS":
                    self.on_status(value)


def tell_service_manager(line: str) -> None:
    """Says ``line`` to whoever started this program and listens as systemd does (``Type=notify``)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            # A leading @ is an abstract socket.
            sender.sendto(line.encode(), "\0" + address[1:] if address.startswith("@") else address)


def _notify_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(path))
    listener.setblocking(False)  # noqa: FBT003  # The standard library's signature.
    return listener


def _die_with(parent: int) -> Callable[[], None]:
    """For the child between fork and exec: the kernel kills it when the parent dies, however it dies."""

    def ask_kernel() -> None:
        assert _LIBC is not None
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # It died between the fork and the line above.
            os._exit(1)

    return ask_kernel
