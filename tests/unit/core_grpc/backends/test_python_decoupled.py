"""Decoupled models of the Python backend in a registry: streams at once, slow readers, what blocks, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from core_grpc.errors import BackendFailed, DeadlineExpired, ModelNotReady
from core_grpc.lifecycle import ModelState
from core_grpc.types import Array, InferRequest
from tests.support import python_models as models
from tests.support.python_processes import content, model_processes, serving


def repeat(values: list[int], delay_ms: int = 0, wait_ms: int = 0) -> dict[str, Array]:
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.full(len(values), delay_ms, np.uint32),
        "WAIT": np.array([wait_ms], np.uint32),
    }


async def test_decoupled_answers_come_as_they_are_made(tmp_path: Path) -> None:
    models.write_repeat(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("repeat_int32")
        began, got, times = time.monotonic(), [], []
        async for execution in model.stream(repeat([4, 5, 6], 100), InferRequest("repeat_int32", "", {})):
            got.append(int(execution.outputs["OUT"][0]))
            times.append(time.monotonic() - began)
        assert got == [4, 5, 6]
        assert times[2] - times[0] > 0.05, "the first did not wait for the last, made 0.2 s later"
        assert [e async for e in model.stream(repeat([]), InferRequest("repeat_int32", "", {}))] == []


async def test_decoupled_requests_run_at_once(tmp_path: Path) -> None:
    models.write_repeat(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("repeat_int32")

        answering: set[int] = set()
        most_at_once = 0

        async def run(number: int) -> list[int]:
            nonlocal most_at_once
            got = []
            async for execution in model.stream(repeat([number] * 5, 40), InferRequest("repeat_int32", "", {})):
                got.append(int(execution.outputs["OUT"][0]))
                answering.add(number)
                most_at_once = max(most_at_once, len(answering))
            answering.remove(number)
            return got

        assert await asyncio.gather(*map(run, range(30))) == [[number] * 5 for number in range(30)]
        assert most_at_once > 10, "of 30 that came together"


async def test_a_slow_reader_holds_back_its_own_generator_only(tmp_path: Path) -> None:
    directory = models.write_count(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("count")

        def count(end: int, request_id: str) -> dict[str, Array]:
            del request_id
            return {"N": np.array([end, -1, 1000], np.int32)}

        async with aclosing(model.stream(count(100_000, "slow"), InferRequest("count", "", {}, "slow"))) as slow:
            await anext(slow)
            quick = [e async for e in model.stream(count(500, "quick"), InferRequest("count", "", {}, "quick"))]
            assert [int(e.outputs["OUT"][0]) for e in quick] == list(range(500))
        assert int(await content(directory / "made-slow")) < 10, "made no further than its credits, and ended with its reader"


async def test_decoupled_failures(tmp_path: Path) -> None:
    models.write_count(tmp_path)
    models.write_repeat(tmp_path)
    async with serving(tmp_path) as registry:
        stream = registry.find_decoupled("count").stream({"N": np.array([5, 2, 1], np.int32)}, InferRequest("count", "", {}))
        got = [int((await anext(stream)).outputs["OUT"][0]) for _ in range(2)]
        with pytest.raises(BackendFailed, match=r"model 'count': RuntimeError: the model tired \(model.py, line"):
            await anext(stream)
        assert got == [0, 1]
        late = InferRequest("repeat_int32", "", {}, deadline=time.monotonic() + 0.2)
        with pytest.raises(DeadlineExpired):
            _ = [e async for e in registry.find_decoupled("repeat_int32").stream(repeat([1, 2], 150), late)]


async def test_a_decoupled_process_that_dies_fails_its_streams_and_comes_back(tmp_path: Path) -> None:
    models.write_repeat(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("repeat_int32")
        stream = model.stream(repeat([1, 2, 3], 200), InferRequest("repeat_int32", "", {}))
        await anext(stream)
        (pid,) = model_processes()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BackendFailed, match="its process was killed by signal 9"):
            await anext(stream)
        again = [e async for e in model.stream(repeat([7]), InferRequest("repeat_int32", "", {}))]
        assert int(again[0].outputs["OUT"][0]) == 7


async def test_closing_ends_streams(tmp_path: Path) -> None:
    models.write_repeat(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("repeat_int32")
        stream = model.stream(repeat([1, 2], 5000), InferRequest("repeat_int32", "", {}))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        await registry.control.unload("repeat_int32")
        with pytest.raises(ModelNotReady):
            await first
        assert model.lifecycle.state is ModelState.UNAVAILABLE


async def test_a_generator_that_blocks_everything_costs_the_process(tmp_path: Path) -> None:
    code = """
        import time
        import numpy as np
        class Model:
            async def execute(self, request):
                if request.id == "block":
                    time.sleep(60)
                yield {"OUT": np.zeros(1, np.int32)}
    """
    config = "[python]\ndecoupled = true\ntimeout_s = 0.5\n"
    models.write_python_model(tmp_path, "blocks", code, **models.COUNT_TENSORS, config=config)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("blocks")

        async def run(request_id: str) -> int:
            inputs = {"N": np.zeros(3, np.int32)}
            return len([e async for e in model.stream(inputs, InferRequest("blocks", "", {}, request_id))])

        assert await run("a") == 1
        with pytest.raises(BackendFailed, match="no answer within"):
            await run("block")
        assert await run("b") == 1


async def test_a_caller_who_leaves_while_a_request_is_sent_frees_its_work(tmp_path: Path) -> None:
    code = """
        import asyncio
        import numpy as np
        class Model:
            async def execute(self, request):
                if request.id == "wait":
                    await asyncio.sleep(60)
                yield {"OUT": np.array([len(asyncio.all_tasks())], np.int32)}
    """
    models.write_python_model(
        tmp_path, "large", code, inputs={"N": ("UINT8", [-1])}, outputs={"OUT": ("INT32", [1])}, config=models.DECOUPLED
    )
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("large")

        async def tasks() -> int:
            request = InferRequest("large", "", {}, "tasks")
            (answer,) = [execution async for execution in model.stream({"N": np.zeros(1, np.uint8)}, request)]
            return int(answer.outputs["OUT"][0])

        before = await tasks()
        (pid,) = model_processes()
        os.kill(pid, signal.SIGSTOP)
        answers = model.stream({"N": np.zeros(1 << 24, np.uint8)}, InferRequest("large", "", {}, "wait"))
        caller = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.05)  # The process takes nothing, so that the caller can only wait for it.
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        os.kill(pid, signal.SIGCONT)
        assert await tasks() == before


async def test_a_generator_that_waits_too_long_fails_alone(tmp_path: Path) -> None:
    code = """
        import asyncio
        import numpy as np
        class Model:
            async def execute(self, request):
                if request.id == "wait":
                    await asyncio.sleep(60)
                yield {"OUT": np.zeros(1, np.int32)}
    """
    config = "[python]\ndecoupled = true\ntimeout_s = 2\n"
    models.write_python_model(tmp_path, "waits", code, **models.COUNT_TENSORS, config=config)
    async with serving(tmp_path) as registry:
        model = registry.find_decoupled("waits")

        async def run(request_id: str) -> int:
            inputs = {"N": np.zeros(3, np.int32)}
            return len([e async for e in model.stream(inputs, InferRequest("waits", "", {}, request_id))])

        before = model_processes()
        with pytest.raises(BackendFailed, match="no answer within"):
            await run("wait")
        assert await run("b") == 1
        assert model_processes() == before


async def test_a_plain_generator_runs_on_a_thread_and_is_closed(tmp_path: Path) -> None:
    code = """
        import pathlib, time
        import numpy as np
        class Model:
            def initialise(self, context):
                self.directory = context.directory
            def execute(self, request):
                try:
                    for number in range(1000):
                        time.sleep(0.01)
                        yield {"OUT": np.array([number], np.int32)}
                finally:
                    (self.directory / "closed").write_text("yes")
    """
    directory = models.write_python_model(tmp_path, "plain", code, **models.COUNT_TENSORS, config=models.DECOUPLED)
    async with serving(tmp_path) as registry:
        inputs = {"N": np.zeros(3, np.int32)}
        async with aclosing(registry.find_decoupled("plain").stream(inputs, InferRequest("plain", "", {}))) as stream:
            assert [int((await anext(stream)).outputs["OUT"][0]) for _ in range(3)] == [0, 1, 2]
        assert await content(directory / "closed") == "yes"
