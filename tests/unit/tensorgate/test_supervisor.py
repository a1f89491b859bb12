"""The supervisor over real child processes: small Python programs that speak the protocol."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorgate.child import Child, Command
from tensorgate.ports import Door
from tensorgate.supervisor import Backoff, Service, Supervisor, drain_at_once, drain_by_signal, drain_when_asked
from tests.support.programs import is_running

SPEAK = """
import os, signal, socket, sys, time
def say(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
def asked():
    return os.read(int(os.environ["TENSORGATE_CONTROL_FD"]), 100)
def wait():
    while True:
        signal.pause()
"""
GOOD = SPEAK + "say('STATUS=loading'); say('READY=1')\nif asked(): say('X_DRAINED=1')\nwait()"
DEAF = SPEAK + "signal.signal(signal.SIGTERM, signal.SIG_IGN); say('READY=1'); wait()"


def program(source: str, *arguments: str) -> Command:
    return Command([sys.executable, "-c", source, *arguments], {"PATH": os.environ["PATH"]})


class Run:
    """A supervisor in a task, and what it reported."""

    def __init__(self, directory: Path, *services: Service, grace_s: float = 20.0, backoff: Backoff | None = None) -> None:
        self.lines: list[str] = []
        self.output = io.BytesIO()
        self.ready = asyncio.Event()
        self.supervisor = Supervisor(
            services, directory, output=self.output, report=self.lines.append, grace_s=grace_s, backoff=backoff or Backoff(first_s=0.01)
        )
        self.task = asyncio.create_task(self.supervisor.run(self._on_ready))

    async def _on_ready(self) -> None:
        self.ready.set()

    def pid(self, name: str) -> int:
        child = self.supervisor.child(name)
        assert child is not None
        return child.pid

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  # Other processes' states have no event.
                await asyncio.sleep(0.01)

    async def code(self) -> int:
        async with asyncio.timeout(30):
            return await self.task


async def test_ready_when_all_have_said_so_and_drained_in_reverse(tmp_path: Path) -> None:
    order: list[str] = []

    def service(name: str) -> Service:
        async def drain(child: Child) -> None:
            order.append(name)
            child.ask_to_drain(with_notice=True)
            await child.said_drained.wait()

        return Service(name, program(GOOD), drain=drain)

    run = Run(tmp_path, service("first"), service("second"))
    await run.ready.wait()
    pids = [run.pid("first"), run.pid("second")]
    run.supervisor.stop()
    assert await run.code() == 0
    assert order == ["second", "first"]
    assert "first: loading" in run.lines
    assert not any(is_running(pid) for pid in pids)


async def test_a_crashed_child_is_started_again_while_the_others_stay(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", program(GOOD)), Service("edge", program(GOOD)))
    await run.ready.wait()
    node, edge = run.pid("node"), run.pid("edge")
    os.kill(node, signal.SIGKILL)
    await run.until(lambda: "node is back" in run.lines)
    assert "node was killed by SIGKILL; it is started again in 0.01 s" in run.lines
    assert run.pid("node") != node
    assert run.pid("edge") == edge
    run.supervisor.stop()
    assert await run.code() == 0


def test_pauses_double_up_to_a_limit_and_are_forgotten() -> None:
    backoff = Backoff(first_s=1, most_s=5, steady_s=60)
    pauses = [0.0]
    for _ in range(4):
        pauses.append(backoff.after(pauses[-1], lived_s=2))
    assert pauses[1:] == [1, 2, 4, 5]
    assert backoff.after(5, lived_s=60) == 1


async def test_a_child_that_never_was_ready_ends_the_start(tmp_path: Path) -> None:
    bad = Service("node", program("print('why it failed'); raise SystemExit(3)"))
    run = Run(tmp_path, bad, Service("edge", program(GOOD)))
    assert await run.code() == 1
    assert "node did not start: it exited with code 3; its own words are above" in run.lines
    assert run.output.getvalue() == b"why it failed\n"
    edge = run.supervisor.child("edge")
    assert edge is None or not is_running(edge.pid)


async def test_a_port_that_was_taken_meanwhile_is_explained(tmp_path: Path) -> None:
    complaint = "import sys; sys.exit('cannot bind 127.0.0.1:50051: Address already in use')"
    doors = [Door("127.0.0.1", 8080, "--port"), Door("127.0.0.1", 50051, "--grpc-port")]
    run = Run(tmp_path, Service("node", program(complaint), doors=doors))
    assert await run.code() == 1
    assert run.lines == ["port 50051 on 127.0.0.1 is taken: stop what listens there or choose another with --grpc-port"]


async def test_a_program_that_is_missing(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", Command(["/no/such/program"], {})))
    assert await run.code() == 1
    assert run.lines == ["node cannot be started: No such file or directory: /no/such/program"]


async def test_work_that_takes_longer_than_the_grace_is_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", program(SPEAK + "say('READY=1'); wait()")), grace_s=0.1)
    await run.ready.wait()
    run.supervisor.stop()
    assert await run.code() == 0
    assert "node did not finish its work within 0.1 s" in run.lines


async def test_a_second_stop_kills_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", program(DEAF), drain=drain_by_signal), grace_s=600)
    await run.ready.wait()
    pid = run.pid("node")
    run.supervisor.stop()
    await asyncio.sleep(0)
    run.supervisor.stop()
    assert await run.code() == 130
    assert not is_running(pid)


async def test_stopping_while_a_child_still_starts(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", program("import time; time.sleep(600)")))
    await run.until(lambda: run.supervisor.child("node") is not None)
    run.supervisor.stop()
    assert await run.code() == 0
    assert not run.ready.is_set()


async def test_stopping_during_a_pause(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", program(GOOD)), backoff=Backoff(first_s=600, most_s=600))
    await run.ready.wait()
    os.kill(run.pid("node"), signal.SIGKILL)
    await run.until(lambda: any("started again in 600 s" in line for line in run.lines))
    run.supervisor.stop()
    assert await run.code() == 0


async def test_a_signal_to_the_supervisor_is_a_stop(tmp_path: Path) -> None:
    run = Run(tmp_path, Service("node", program(GOOD)))
    await run.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run.code() == 0


@pytest.mark.parametrize("watches_control", [True, False])
async def test_children_do_not_get_ctrl_c_of_the_terminal(tmp_path: Path, watches_control: bool) -> None:
    command = program(GOOD)
    run = Run(tmp_path, Service("node", Command(command.argv, command.env, watches_control)))
    await run.ready.wait()
    assert os.getpgid(run.pid("node")) != os.getpgid(0)
    run.supervisor.stop()
    await run.code()


async def test_where_the_kernel_does_not_help_a_watcher_ends_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of other systems than Linux, tried on this one: the end of the control pipe kills a program that does not watch it."""
    monkeypatch.setattr("tensorgate.child._LIBC", None)
    command = program(SPEAK + "say('READY=1'); wait()")
    child = await Child.start("edge", Command(command.argv, command.env, watches_control=False), tmp_path, io.BytesIO())
    await asyncio.wait_for(child.said_ready.wait(), 20)
    control, child._control = child._control, os.open(os.devnull, os.O_WRONLY)
    os.close(control)
    await asyncio.wait_for(child.exited.wait(), 20)
    assert child.exit_code == -signal.SIGKILL


def stepping(name: str, source: str = GOOD) -> Service:
    return Service(name, program(source), drain=drain_at_once, step_aside=drain_when_asked)


async def test_a_restart_takes_one_after_the_other_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, stepping("one"), stepping("two"), Service("edge", program(GOOD)))
    await run.ready.wait()
    before = {name: run.pid(name) for name in ("one", "two", "edge")}
    run.supervisor.restart()
    run.supervisor.restart()
    await run.until(lambda: "all are restarted" in run.lines)
    after = {name: run.pid(name) for name in before}
    assert after["one"] != before["one"]
    assert after["two"] != before["two"]
    assert after["edge"] == before["edge"]
    order = [line for line in run.lines if "makes way" in line or "is back" in line]
    assert order == ["one makes way for its successor", "one is back", "two makes way for its successor", "two is back"]
    run.supervisor.stop()
    assert await run.code() == 0


async def test_a_successor_that_fails_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    """The first start is good, later ones fail until a file is there."""
    started, repaired = tmp_path / "started", tmp_path / "repaired"
    check = (
        f"import pathlib, sys\nif pathlib.Path({str(started)!r}).exists() and not pathlib.Path({str(repaired)!r}).exists(): sys.exit(3)\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
    )
    run = Run(tmp_path, stepping("one", check + GOOD), stepping("two"))
    await run.ready.wait()
    two = run.pid("two")
    run.supervisor.restart()
    await run.until(lambda: sum("exited with code 3" in line for line in run.lines) >= 2)
    assert run.pid("two") == two
    assert not run.task.done()
    repaired.touch()
    await run.until(lambda: "all are restarted" in run.lines)
    assert run.pid("two") != two
    run.supervisor.stop()
    assert await run.code() == 0


async def test_a_stop_in_the_middle_of_a_restart_stops(tmp_path: Path) -> None:
    run = Run(tmp_path, stepping("one"), stepping("two"))
    await run.ready.wait()
    run.supervisor.restart()
    await run.until(lambda: any("makes way" in line for line in run.lines))
    run.supervisor.stop()
    assert await run.code() == 0
