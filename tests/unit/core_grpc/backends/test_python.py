"""The Python backend in a registry: models in processes of their own, what they do wrong, and how they end."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from core_grpc.errors import BackendFailed, GatewayError, InvalidArgument, ModelNotReady
from core_grpc.models.registry import Registry
from core_grpc.types import Array, InferRequest
from tests.support import python_models as models
from tests.support.programs import ROOT, is_running
from tests.support.python_processes import content, serving


def row(first: float) -> Array:
    return np.array([[first, 1, 2, 3]], np.float32)


async def ask(registry: Registry, model: str, first: float, **fields: object) -> Array:
    request = InferRequest(model, "", {}, **fields)  # type: ignore[arg-type]
    return (await registry.find(model).infer({"X": row(first)}, 1, request)).outputs["Y"]


async def failure(registry: Registry, first: float) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await ask(registry, "faults", first)
    return caught.value


def reason(registry: Registry, name: str) -> str:
    return next(entry.reason for entry in registry.entries() if entry.name == name)


async def test_requests_of_a_batch_get_their_own_rows(tmp_path: Path) -> None:
    models.write_double(tmp_path)
    async with serving(tmp_path) as registry:
        answers = await asyncio.gather(*(ask(registry, "double", number) for number in range(20)))
        assert [answer[0, 0] for answer in answers] == [2 * number for number in range(20)]
        assert registry.find("double").statistics.execution_count < 20


@pytest.mark.parametrize(
    ("order", "kind", "text"),
    [
        (1, BackendFailed, "model 'faults': ValueError: one is not served (model.py, line 14)"),
        (2, InvalidArgument, "two is the caller's fault"),
        (3, BackendFailed, "model 'faults': its process exited with code 7 while it ran the request"),
        (4, BackendFailed, "model 'faults': an execution took longer than [python] timeout_s = 1.5"),
        (5, BackendFailed, "model 'faults': output 'Y': wanted FP32 (float32), got float64"),
        (6, BackendFailed, "model 'faults': output 'Y': wanted 1 rows, as the request has, got 9"),
        (7, BackendFailed, "model 'faults': output 'Y' is missing"),
        (8, ModelNotReady, "come again"),
        (10, BackendFailed, "model 'faults': its process was killed by signal 9 while it ran the request"),
    ],
)
async def test_a_fault_is_its_own_requests(tmp_path: Path, order: int, kind: type[GatewayError], text: str) -> None:
    models.write_faults(tmp_path)
    async with serving(tmp_path) as registry:
        good = asyncio.gather(*(ask(registry, "faults", 0) for _ in range(3)))
        error = await failure(registry, order)
        assert (type(error), error.message) == (kind, text)
        assert [answer[0, 3] for answer in await good] == [3, 3, 3], "batch mates are served all the same"
        assert (await ask(registry, "faults", 0))[0, 3] == 3, "and the model goes on"


async def test_a_process_that_keeps_dying_is_started_more_and_more_seldom(tmp_path: Path) -> None:
    models.write_faults(tmp_path)
    async with serving(tmp_path) as registry:
        errors = [await failure(registry, 3) for _ in range(8)]
        assert any(isinstance(error, ModelNotReady) and "keeps failing" in error.message for error in errors)


async def test_what_it_prints_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models.write_faults(tmp_path)
    with caplog.at_level(logging.INFO):
        async with serving(tmp_path) as registry:
            await ask(registry, "faults", 9)
    assert "model faults/1/0: printed by the model" in caplog.messages
    assert "model faults/1/0: and to stderr" in caplog.messages


async def test_what_a_request_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import json, os, sys
        import helper
        class Model:
            def initialize(self, context):
                c = context
                self.told = [c.name, c.version, c.instance, dict(c.parameters), c.inputs, c.outputs]
            def execute(self, requests):
                request = requests[0]
                seen = [request.id, dict(request.parameters), 1 < request.remaining_s < 60, request.inputs["T"][1].decode()]
                env = sorted(name for name in os.environ if "SECRET" in name or "TENSORGATE" in name or name == "WANTED")
                return [{"Y": [json.dumps([*self.told, *seen, env, helper.WORD, sys.stdin.read()]), "\u00fc"]}]
    """
    config = '[python]\nenvironment = ["WANTED"]\n[python.parameters]\nk = 5\n'
    directory = models.write_python_model(
        tmp_path, "told", code, inputs={"T": ("BYTES", [2])}, outputs={"Y": ("BYTES", [2])}, config=config
    )
    (directory.parent / "helper.py").write_text("WORD = 'helped'\n")
    for name in ("A_SECRET", "TENSORGATE_SERVER_NAME", "WANTED"):
        monkeypatch.setenv(name, "x")
    async with serving(tmp_path) as registry:
        # The parameter timeout bounds the wait in the queue: it is not the model's deadline.
        parameters: dict[str, bool | int | float | str] = {"a": 1, "b": "c", "timeout": 500_000}
        request = InferRequest("told", "", {}, "7", parameters=parameters, deadline=time.monotonic() + 59)
        inputs = {"T": np.array([b"\xff\0", "ü".encode()], dtype=object)}
        text, other = (await registry.find("told").infer(inputs, 1, request)).outputs["Y"].tolist()
    asked = '"7", {"a": 1, "b": "c", "timeout": 500000}, true, "\\u00fc"'
    wanted = f'["told", "1", 0, {{"k": 5}}, ["T"], ["Y"], {asked}, ["WANTED"], "helped", ""]'
    assert text.decode() == wanted
    assert other == "ü".encode()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import nosuchmodule", "model.py: ModuleNotFoundError: No module named 'nosuchmodule' (model.py, line 1)"),
        ("x = (", "model.py: SyntaxError: '(' was never closed (model.py, line 1)"),
        ("class Other: pass", "model.py: model.py has no class Model"),
        ("class Model: pass", "model.py: class Model of model.py has no method execute"),
        (
            "class Model:\n  def initialise(self, context):\n    1/0\n  def execute(self, requests): pass",
            "model.py: ZeroDivisionError: division by zero (model.py, line 3)",
        ),
        ("import os; os._exit(3)", "the process of model.py exited with code 3 while it was initialised; its output is in the log"),
        (
            "class Model:\n  def execute(self, request): yield",
            "model.py: execute: wanted a method that returns a list, got a generator, which needs [python] decoupled = true",
        ),
    ],
)
async def test_a_model_that_cannot_be_made(tmp_path: Path, code: str, text: str) -> None:
    models.write_python_model(tmp_path, "broken", code, **models.ROWS)
    async with serving(tmp_path) as registry:
        assert reason(registry, "broken") == text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("[python]\ntimeout = 3", "model.toml: [python] timeout: no such option"),
        ("[python]\ntimeout_s = 0", "model.toml: [python] timeout_s: wanted seconds up to 86400, got 0"),
        ("[python]\ndecoupled = 1", "model.toml: [python] decoupled: wanted true or false, got 1"),
        ("[python]\nenvironment = [1]", "model.toml: [python] environment: wanted a list of names, got [1]"),
        ("[python]\nstart_timeout_s = 0.001", "model.py was not initialised within 0.001 s"),
    ],
)
async def test_options_are_checked(tmp_path: Path, config: str, text: str) -> None:
    models.write_python_model(tmp_path, "m", models.DOUBLE, **models.ROWS, config=config)
    async with serving(tmp_path) as registry:
        assert reason(registry, "m").startswith(text)


async def test_a_caller_who_leaves_is_seen_by_the_model(tmp_path: Path) -> None:
    code = """
        import pathlib, time
        class Model:
            def initialise(self, context):
                self.directory = context.directory
            def execute(self, requests):
                ends = time.monotonic() + 20
                while not requests[0].is_cancelled and time.monotonic() < ends:
                    time.sleep(0.01)
                (self.directory / "left").write_text(str(requests[0].is_cancelled))
                return [{"Y": request.inputs["X"]} for request in requests]
    """
    directory = models.write_python_model(tmp_path, "patient", code, **models.ROWS)
    async with serving(tmp_path) as registry:
        task = asyncio.create_task(ask(registry, "patient", 0))
        await asyncio.sleep(0.1)
        task.cancel()
        assert await content(directory / "left") == "True"


async def test_what_a_dying_process_has_started_dies_with_it(tmp_path: Path) -> None:
    code = """
        import os, pathlib, subprocess
        class Model:
            def initialise(self, context):
                self.directory = context.directory
            def execute(self, requests):
                child = os.fork()
                if child == 0:
                    import time
                    time.sleep(60)
                (self.directory / "child").write_text(str(child))
                os._exit(5)
    """
    directory = models.write_python_model(tmp_path, "parent", code, **models.ROWS)
    async with serving(tmp_path) as registry:
        began = time.monotonic()
        with pytest.raises(BackendFailed, match="exited with code 5"):
            await ask(registry, "parent", 0)
        assert time.monotonic() - began < 5, "although the child holds the socket"
        child = int(await content(directory / "child"))
    for _ in range(100):
        if not is_running(child):
            break
        await asyncio.sleep(0.02)
    assert not is_running(child)


def test_a_process_whose_parent_died_before_it_began_ends() -> None:
    """Whatever it was told to do: the model could hold it for ever."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", "-m", "core_grpc.backends.python.child", str(theirs.fileno()), "1"]
        finished = subprocess.run(command, pass_fds=[theirs.fileno()], cwd=ROOT, timeout=50, check=False)
    assert finished.returncode == 0
