"""Streams of inferences, and the processes of Python models, when a gateway stops."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos.tensorgate.v1 import inference_pb2 as pb
from protos.tensorgate.v1 import inference_pb2_grpc as pb_grpc
from tests.support.programs import descendants, is_running, wait_until
from tests.support.python_models import write_double, write_repeat
from tests.support.stack import TRANSPORTS, running_stack


def repeated(values: list[int], delay_ms: int) -> pb.PredictRequest:
    request = pb.PredictRequest(model="repeat_int32", id="r")
    request.inputs.add(name="IN", datatype="INT32", shape=[len(values)], int_values=values)
    request.inputs.add(name="DELAY", datatype="UINT32", shape=[len(values)], int64_values=[delay_ms] * len(values))
    request.inputs.add(name="WAIT", datatype="UINT32", shape=[1], int64_values=[0])
    return request


async def end_of(call: AsyncIterator[pb.ConverseResponse], answers: list[pb.ConverseResponse]) -> grpc.aio.AioRpcError:
    """Reads what is left, and gives the failure that it ends with."""
    try:
        async for answer in call:
            answers += [answer]
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream ended without a failure")


@pytest.mark.parametrize("door", ["node", "edge"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stop_lets_streams_finish_what_they_read_and_ends_them(
    transport: str, door: str, free_port: Callable[[], int], tmp_path: Path
) -> None:
    write_repeat(tmp_path)
    with running_stack(free_port, transport, tmp_path) as stack:
        address = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc

        async def requests() -> AsyncIterator[pb.ConverseRequest]:
            yield pb.ConverseRequest(request=repeated([1, 2, 3, 4], 300))
            await asyncio.Event().wait()

        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            busy = stub.Converse(requests())
            answers = [await anext(aiter(busy))]
            stack.program.send(signal.SIGINT)
            began = time.monotonic()
            error = await end_of(busy, answers)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in (error.details() or "")
        got = [list(answer.outcome.response.outputs[0].int_values) for answer in answers if not answer.final]
        assert got == [[1], [2], [3], [4]], "what was read is answered"
        assert stack.program.wait() == 0
        assert time.monotonic() - began < 8


def test_no_python_model_outlives_a_killed_gateway(free_port: Callable[[], int], tmp_path: Path) -> None:
    write_repeat(tmp_path)
    write_double(tmp_path)
    with running_stack(free_port, "grpcio", tmp_path) as stack:
        children = descendants(stack.program.pid)
        models = [pid for pid, command in children.items() if "backends.python.child" in command]
        assert len(models) == 2
        stack.program.send(signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, children)), "everything is gone", 5)
