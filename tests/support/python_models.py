"""Models of the Python backend for tests: small classes that do what models do, and what they should not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

Tensors = Mapping[str, tuple[str, list[int]]]


def write_python_model(repository: Path, name: str, code: str, *, inputs: Tensors, outputs: Tensors, config: str = "") -> Path:
    """Writes ``<repository>/<name>/1/model.py`` and model.toml; returns the version's directory. ``config`` comes before the tables."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(dedent(code))
    tables = [_table("input", *item) for item in inputs.items()] + [_table("output", *item) for item in outputs.items()]
    (repository / name / "model.toml").write_text("\n".join(['backend = "python"', config, *tables]))
    return directory


def _table(role: str, name: str, declared: tuple[str, list[int]]) -> str:
    datatype, shape = declared
    return f'[{role}.{name}]\ndatatype = "{datatype}"\nshape = {shape}\n'


ROWS: dict[str, Any] = {"inputs": {"X": ("FP32", [-1, 4])}, "outputs": {"Y": ("FP32", [-1, 4])}}

DOUBLE = """
    class Model:
        def execute(self, requests):
            return [{"Y": request.inputs["X"] * 2} for request in requests]
"""

FAULTS = '''
    """Does what the first number of the first row says."""
    import os, sys, time
    import numpy as np
    from core_grpc.python_model import InferenceError

    class Model:
        def execute(self, requests):
            return [self.one(request) for request in requests]

        def one(self, request):
            order = int(request.inputs["X"][0, 0])
            if order == 1:
                raise ValueError("one is not served")
            if order == 2:
                return InferenceError("two is the caller's fault")
            if order == 3:
                os._exit(7)
            if order == 4:
                time.sleep(60)
            if order == 5:
                return {"Y": np.zeros((1, 4), np.float64)}
            if order == 6:
                return {"Y": np.zeros((9, 4), np.float32)}
            if order == 7:
                return {"Z": 1}
            if order == 8:
                return InferenceError("come again", "UNAVAILABLE")
            if order == 9:
                print("printed by the model")
                print("and to stderr", file=sys.stderr)
            if order == 10:
                os.kill(os.getpid(), 9)
            return {"Y": request.inputs["X"]}
'''

REPEAT = '''
    """Triton's repeat_int32: an answer for each element of IN, DELAY milliseconds after the one before; ends after WAIT milliseconds."""
    import asyncio
    import numpy as np

    class Model:
        async def execute(self, request):
            for value, delay_ms in zip(request.inputs["IN"], request.inputs["DELAY"]):
                await asyncio.sleep(delay_ms / 1000)
                yield {"OUT": np.array([value], np.int32), "IDX": np.array([0], np.uint32)}
            await asyncio.sleep(int(request.inputs["WAIT"][0]) / 1000)
'''
REPEAT_TENSORS: dict[str, Any] = {
    "inputs": {"IN": ("INT32", [-1]), "DELAY": ("UINT32", [-1]), "WAIT": ("UINT32", [1])},
    "outputs": {"OUT": ("INT32", [1]), "IDX": ("UINT32", [1])},
}
DECOUPLED = "[python]\ndecoupled = true\n"

COUNT = '''
    """Counts up from 0 to N - 1, as fast as it is read; fails at FAIL_AT. Leaves a file when its caller has left."""
    import pathlib
    import numpy as np

    class Model:
        def initialise(self, context):
            self.directory = context.directory

        async def execute(self, request):
            end, fail_at, size = (int(number) for number in request.inputs["N"])
            made = 0
            try:
                for number in range(end):
                    if number == fail_at:
                        raise RuntimeError("the model tired")
                    made = number + 1
                    yield {"OUT": np.full(size, number, np.int32)}
            finally:
                (self.directory / f"made-{request.id}").write_text(str(made))
'''
COUNT_TENSORS: dict[str, Any] = {"inputs": {"N": ("INT32", [3])}, "outputs": {"OUT": ("INT32", [-1])}}


FRAMES = '''
    """How many frames a WAV file has."""
    import io, wave
    import numpy as np

    class Model:
        def execute(self, requests):
            return [{"FRAMES": np.array([[self.frames(file)] for file in r.inputs["AUDIO"][:, 0]], np.int32)} for r in requests]

        def frames(self, file):
            return wave.open(io.BytesIO(file)).getnframes()
'''
FRAMES_TENSORS: dict[str, Any] = {"inputs": {"AUDIO": ("BYTES", [-1, 1])}, "outputs": {"FRAMES": ("INT32", [-1, 1])}}


def write_frames(repository: Path) -> None:
    """``frames``: takes recordings."""
    write_python_model(repository, "frames", FRAMES, **FRAMES_TENSORS, config="max_batch_size = 8")


def write_double(repository: Path) -> None:
    """``double``: Y = 2 X, in Python, batched."""
    write_python_model(repository, "double", DOUBLE, **ROWS, config="max_batch_size = 8")


def write_faults(repository: Path) -> None:
    """``faults``: see ``FAULTS``."""
    write_python_model(repository, "faults", FAULTS, **ROWS, config="max_batch_size = 8\n[python]\ntimeout_s = 1.5")


def write_repeat(repository: Path) -> None:
    """``repeat_int32``: decoupled."""
    write_python_model(repository, "repeat_int32", REPEAT, **REPEAT_TENSORS, config=DECOUPLED)


def write_count(repository: Path) -> Path:
    """``count``: decoupled; returns where it leaves its notes."""
    return write_python_model(repository, "count", COUNT, **COUNT_TENSORS, config=DECOUPLED)


def write_gated(repository: Path, name: str, gate: Path, config: str = "") -> Path:
    """A model that is loaded no sooner than the file ``gate`` is there, and then answers twice its input."""
    code = f"""
        import os, time

        class Model:
            def initialise(self, context):
                while not os.path.exists({str(gate)!r}):
                    time.sleep(0.01)

            def execute(self, requests):
                return [{{"Y": request.inputs["X"] * 2}} for request in requests]
    """
    return write_python_model(repository, name, code, config=config, **ROWS)


async def made(repository: Path, request_id: str) -> int:
    """How far ``count`` came with a request that has ended, within five seconds."""
    note = repository / "count" / "1" / f"made-{request_id}"
    for _ in range(100):
        if note.exists() and (text := note.read_text()):
            return int(text)
        await asyncio.sleep(0.05)
    raise AssertionError(f"the work of {request_id} was not freed")


def write_held(repository: Path, name: str, hold: Path, config: str = "") -> Path:
    """A model that answers twice its input once the file ``hold`` is gone, and makes the file ``<hold>.entered`` when it begins."""
    code = f"""
        import os, time

        class Model:
            def execute(self, requests):
                open({str(hold) + ".entered"!r}, "w").close()
                while os.path.exists({str(hold)!r}):
                    time.sleep(0.01)
                return [{{"Y": request.inputs["X"] * 2}} for request in requests]
    """
    return write_python_model(repository, name, code, config=config, **ROWS)
