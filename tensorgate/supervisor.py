"""Keeps a few services running: starts them, restarts what crashes, and stops them in the direction of flow.

A service that exits before it was ever ready ends everything: it would not start the next time either. One that crashes later is started
again after a pause that doubles, while the others stay up. The first SIGINT or SIGTERM drains, last started first; a second one kills.
SIGUSR2 restarts the services that can make way for a successor, one after the other.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from tensorgate.child import Child, Command
from tensorgate.ports import Door

_FORCED_EXIT_CODE = 130


Drain: TypeAlias = Callable[[Child], Awaitable[None]]
"""Makes a child finish its work, and returns when that is done."""


class StartError(Exception):
    """A service exited before it was ready; the message is one line."""


async def ready_when_said(child: Child) -> None:
    """Returns when the child has notified ``READY=1``."""
    await child.said_ready.wait()


async def drain_when_asked(child: Child) -> None:
    """Asks by the control pipe and returns when the child says that its work is done. Whoever is in front gets time to notice."""
    child.ask_to_drain(with_notice=True)
    await child.said_drained.wait()


async def drain_at_once(child: Child) -> None:
    """As ``drain_when_asked``, where nobody is left in front."""
    child.ask_to_drain(with_notice=False)
    await child.said_drained.wait()


async def drain_by_signal(child: Child) -> None:
    """For programs that drain on SIGTERM and then exit."""
    child.send(signal.SIGTERM)
    await child.exited.wait()


@dataclass(frozen=True, slots=True)
class Service:
    """What to run, how to see that it is ready, and how to make it finish its work."""

    name: str
    command: Command
    wait_ready: Callable[[Child], Awaitable[None]] = ready_when_said
    drain: Drain = drain_when_asked
    """Returns when accepted work is done. SIGTERM follows if the child still runs."""
    step_aside: Drain | None = None
    """As ``drain``, while others go on: before a restart that was asked for. None: it is never restarted on request."""
    doors: Sequence[Door] = ()
    """What it listens on, to explain a failed start."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a crashed service is started again, in seconds: doubles from ``first_s``, forgotten after ``steady_s`` of life."""

    first_s: float = 0.5
    most_s: float = 30.0
    steady_s: float = 60.0

    def after(self, pause_s: float, lived_s: float) -> float:
        """The next pause, after one of ``pause_s`` (0: none yet) and a life of ``lived_s``."""
        return self.first_s if pause_s == 0 or lived_s >= self.steady_s else min(pause_s * 2, self.most_s)


class Supervisor:
    """Runs services until a signal, a call of ``stop``, or a failed start."""

    def __init__(
        self,
        services: Sequence[Service],
        directory: Path,
        *,
        output: IO[bytes],
        report: Callable[[str], None],
        grace_s: float = 30.0,
        backoff: Backoff | None = None,
    ) -> None:
        """``services`` in the order of start: what others call comes first. ``report`` takes lines for the operator."""
        self._services = services
        self._directory = directory
        self._output = output
        self._report = report
        self._grace_s = grace_s
        self._backoff = backoff or Backoff()
        self._children: dict[str, Child] = {}
        self._ready: dict[str, asyncio.Event] = {}
        self._stop = asyncio.Event()
        self._is_forced = False
        self._rolling: asyncio.Task[None] | None = None
        self._awaited: dict[str, asyncio.Event] = {}
        """Services that were told to make way, set when their successor is ready."""
        self._leaving: set[str] = set()
        """Services whose next exit is no crash."""

    def child(self, name: str) -> Child | None:
        """The running child of a service."""
        return self._children.get(name)

    def stop(self) -> None:
        """Begins to drain; a second call kills."""
        if not self._stop.is_set():
            self._stop.set()
            return
        self._is_forced = True
        for child in self._children.values():
            child.send(signal.SIGKILL)

    def restart(self) -> None:
        """Begins to restart, one after the other, the services that can step aside; nothing while that goes on or before all are ready."""
        is_busy = self._rolling is not None and not self._rolling.done()
        if not is_busy and not self._stop.is_set() and self._ready and all(event.is_set() for event in self._ready.values()):
            self._rolling = asyncio.create_task(self._roll())

    async def run(self, on_ready: Callable[[], Awaitable[None]]) -> int:
        """Runs everything; ``on_ready`` is called once, when every service is ready. Gives the exit code. Leaves no process behind."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # A closed terminal. Under nohup it is ignored, and stays so.
            loop.add_signal_handler(signal.SIGHUP, self.stop)
        loop.add_signal_handler(signal.SIGUSR2, self.restart)
        self._ready = {service.name: asyncio.Event() for service in self._services}
        keepers = [asyncio.create_task(self._keep(service)) for service in self._services]
        steps = [asyncio.create_task(self._announce(on_ready)), asyncio.create_task(self._stop.wait())]
        code = 0
        try:
            await self._wait_for_end(keepers, steps)
        except StartError as error:
            self._report(str(error))
            code = 1
        finally:
            await self._wind_up([*keepers, *steps])
        return _FORCED_EXIT_CODE if self._is_forced else code

    async def _wait_for_end(self, keepers: list[asyncio.Task[None]], steps: list[asyncio.Task[object]]) -> None:
        pending: set[asyncio.Task[object]] = {*keepers, *steps}
        while not self._stop.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _announce(self, on_ready: Callable[[], Awaitable[None]]) -> object:
        for event in self._ready.values():
            await event.wait()
        await on_ready()
        return None

    async def _keep(self, service: Service) -> None:
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while True:
            started = loop.time()
            child = await self._start(service)
            waiting = asyncio.create_task(self._mark_ready(service, child))
            try:
                await child.exited.wait()
            finally:
                waiting.cancel()
            if not self._ready[service.name].is_set():
                raise StartError(_why(service, child))
            if service.name in self._leaving:
                self._leaving.discard(service.name)
                continue
            pause_s = self._backoff.after(pause_s, loop.time() - started)
            self._report(f"{service.name} {_ending(child)}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)

    async def _roll(self) -> None:
        for service in self._services:
            if service.step_aside is None:
                continue
            back = self._awaited[service.name] = asyncio.Event()
            child = self._children[service.name]
            self._leaving.add(service.name)
            self._report(f"{service.name} makes way for its successor")
            await self._drain(service, child, asyncio.get_running_loop().time() + self._grace_s, service.step_aside)
            await _end(child)
            # The next one goes only when this one serves again, however often it has to be started.
            await back.wait()
        self._report("all are restarted")

    async def _start(self, service: Service) -> Child:
        try:
            child = await Child.start(service.name, service.command, self._directory, self._output)
        except OSError as error:
            raise StartError(f"{service.name} cannot be started: {error.strerror}: {service.command.argv[0]}") from error
        child.on_status = lambda text: self._report(f"{service.name}: {text}")
        self._children[service.name] = child
        return child

    async def _mark_ready(self, service: Service, child: Child) -> None:
        await service.wait_ready(child)
        if self._ready[service.name].is_set():
            self._report(f"{service.name} is back")
        self._ready[service.name].set()
        if back := self._awaited.pop(service.name, None):
            back.set()

    async def _wind_up(self, tasks: Sequence[asyncio.Task[object] | asyncio.Task[None]]) -> None:
        self._stop.set()
        tasks = [*tasks, *([self._rolling] if self._rolling else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        deadline = asyncio.get_running_loop().time() + self._grace_s
        running = [(service, child) for service in reversed(self._services) if (child := self._children.get(service.name))]
        # First all drain, then all end: answers of the last one to drain still pass through the first.
        for service, child in running:
            if child.exit_code is None and self._ready[service.name].is_set():
                await self._drain(service, child, deadline, service.drain)
        for _, child in running:
            await _end(child)
        await asyncio.gather(*(child.exited.wait() for child in self._children.values()))

    async def _drain(self, service: Service, child: Child, deadline: float, how: Drain) -> None:
        """Waits until its accepted work is done, it has exited, or the time is up."""
        ended = asyncio.create_task(child.exited.wait())
        drained = asyncio.ensure_future(how(child))
        left_s = deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({ended, drained}, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
        for step in (ended, drained):
            step.cancel()
        await asyncio.gather(ended, drained, return_exceptions=True)
        if not done:
            self._report(f"{service.name} did not finish its work within {self._grace_s:g} s")


async def _end(child: Child) -> None:
    """SIGTERM, then SIGKILL where that did not do."""
    child.send(signal.SIGTERM)
    # Its work is done, or out of time: a program has nothing left to wait for.
    with suppress(TimeoutError):
        await asyncio.wait_for(child.exited.wait(), timeout=5)
    child.send(signal.SIGKILL)
    await child.exited.wait()


def _ending(child: Child) -> str:
    code = child.exit_code or 0
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def _why(service: Service, child: Child) -> str:
    if "ddress already in use" in child.tail or "ddress in use" in child.tail:
        for door in service.doors:
            if door.is_named_in(child.tail):
                return door.taken()
    return f"{service.name} did not start: it {_ending(child)}; its own words are above"
