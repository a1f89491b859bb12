"""Sequences with state, on what they are for: 64 people speak at once, and each is heard as if alone.

The speech is real, and so is the model (tests/support/speech.py). A state that is lost, or given to the wrong stream, shows at once: the
part of the frames that is heard as speech falls to less than half.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import grpc.aio
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from core_grpc.models.model import Model
from core_grpc.types import InferRequest
from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from tests.support.serving import serving
from tests.support.speech import CONFIG, SILERO, frames, spoken_clips, write_silero
from tests.support.stack import Stack, running_stack

STREAMS = 64
TOLERANCE = 1e-4
Frames = NDArray[np.float32]


@pytest.fixture(scope="module")
def speakers() -> Sequence[Frames]:
    """What each stream hears: every clip eight times, each time from a little later, so that no two are alike at any moment."""
    clips = spoken_clips()
    return [frames(clips[index % len(clips)], 160 * (index // len(clips))) for index in range(STREAMS)]


@pytest.fixture(scope="module")
def alone(speakers: Sequence[Frames]) -> Sequence[Frames]:
    """What the engine makes of each, by itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(SILERO, options, providers=["CPUExecutionProvider"])
    heard: list[Frames] = []
    for speaker in speakers:
        state, probabilities = np.zeros((2, 1, 128), np.float32), []
        for frame in speaker:
            output, state = session.run(None, {"input": frame[None], "state": state})
            probabilities.append(output[0, 0])
        heard.append(np.array(probabilities))
    return heard


def spoken_part(probabilities: Frames) -> float:
    return round(float(np.mean(probabilities > 0.5)), 2)


def flags(sequence_id: int | str, index: int, count: int, *, forgets: bool = False) -> dict[str, bool | int | str]:
    return {"sequence_id": sequence_id, "sequence_start": forgets or index == 0, "sequence_end": index == count - 1}


async def listen(model: Model, sequence_id: int | str, speaker: Frames, *, forgets: bool = False) -> Frames:
    probabilities = []
    for index, frame in enumerate(speaker):
        parameters = flags(sequence_id, index, len(speaker), forgets=forgets)
        execution = await model.infer({"input": frame[None]}, 1, InferRequest("silero", "", {}, parameters=parameters))
        assert list(execution.outputs) == ["output"]
        probabilities.append(execution.outputs["output"][0, 0])
    return np.array(probabilities)


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
@pytest.mark.parametrize("instances", [1, 2])
async def test_64_streams_in_common_batches_hear_what_each_hears_alone(
    tmp_path: Path, speakers: Sequence[Frames], alone: Sequence[Frames], strategy: str, instances: int
) -> None:
    state = '[[sequence.state]]\ninput = "state"\noutput = "stateN"\n'
    sequence = f'[sequence]\nstrategy = "{strategy}"\nmax_idle_ms = 60000\n'
    write_silero(tmp_path, config=f"max_batch_size = 64\n[instances]\ncount = {instances}\n{sequence}{state}")
    async with serving(tmp_path) as registry:
        model = registry.find("silero")
        ids = [index + 1 if index % 2 else f"stream {index}" for index in range(STREAMS)]
        heard = await asyncio.gather(*(listen(model, *pair) for pair in zip(ids, speakers, strict=True)))
        for got, wanted in zip(heard, alone, strict=True):
            np.testing.assert_allclose(got, wanted, atol=TOLERANCE)
        assert [part for part in map(spoken_part, heard[:8]) if not 0.60 <= part <= 0.79] == []
        # Not one by one, which would show nothing.
        executions = sum(batch.count for batch in model.statistics.batches.values())
        assert model.statistics.inference_count == 0  # Counted where requests are answered: by the data plane.
        assert sum(rows * batch.count for rows, batch in model.statistics.batches.items()) == sum(map(len, speakers))
        assert sum(map(len, speakers)) / executions > 8
        assert model.is_idle


async def test_a_state_that_is_lost_shows(tmp_path: Path, speakers: Sequence[Frames]) -> None:
    write_silero(tmp_path)
    async with serving(tmp_path) as registry:
        model = registry.find("silero")
        heard = await asyncio.gather(*(listen(model, index + 1, speakers[index], forgets=True) for index in range(8)))
        assert [part for part in map(spoken_part, heard) if not 0.14 <= part <= 0.40] == []


@pytest.fixture(scope="module")
def node(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    write_silero(repository)
    with running_stack(free_port, "grpcio", repository) as running:
        yield running


async def test_64_streams_over_grpc(node: Stack, speakers: Sequence[Frames], alone: Sequence[Frames]) -> None:
    async with grpc.aio.insecure_channel(node.addresses.node_grpc) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        heard = await asyncio.gather(*(_listen(stub, index, speaker) for index, speaker in enumerate(speakers)))
        statistics = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="silero"))
    for got, wanted in zip(heard, alone, strict=True):
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE)
    (model,) = statistics.model_stats
    assert model.inference_count == sum(map(len, speakers))
    assert model.execution_count < model.inference_count / 2
    assert max(batch.batch_size for batch in model.batch_stats) > 8


async def _listen(stub: pb_grpc.GRPCInferenceServiceStub, stream: int, speaker: Frames) -> Frames:
    """On a stream of its own; frames are sent ahead of their answers, as they are where somebody really speaks."""

    async def spoken() -> AsyncIterator[pb.ModelInferRequest]:
        for index, frame in enumerate(speaker):
            yield _request(stream + 1, frame, start=index == 0, end=index == len(speaker) - 1)

    answers = [answer async for answer in stub.ModelStreamInfer(spoken(), timeout=60)]
    assert [answer.error_message for answer in answers if answer.error_message] == []
    return np.array([np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0] for answer in answers])


async def test_a_stream_that_breaks_frees_its_slot(free_port: Callable[[], int], tmp_path: Path, speakers: Sequence[Frames]) -> None:
    """One slot and an hour of patience with the silent: only the end of the stream can free it."""
    write_silero(tmp_path, config=CONFIG.replace("max_idle_ms = 60000", "max_idle_ms = 3600000\nmax_candidate_sequences = 1"))
    with running_stack(free_port, "envoy", tmp_path) as running:
        async with grpc.aio.insecure_channel(running.addresses.node_grpc) as channel:
            stub = pb_grpc.GRPCInferenceServiceStub(channel)
            broken = stub.ModelStreamInfer(timeout=60)
            await broken.write(_request(1, speakers[0][0], start=True))
            assert not (await broken.read()).error_message
            waiting = asyncio.ensure_future(_infer(stub, _request(2, speakers[1][0], start=True)))
            broken.cancel()
            assert len((await waiting).raw_output_contents) == 1


async def _infer(stub: pb_grpc.GRPCInferenceServiceStub, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    answer: pb.ModelInferResponse = await stub.ModelInfer(request, timeout=30)
    return answer


def _request(sequence_id: int, frame: Frames, *, start: bool = False, end: bool = False) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="silero", raw_input_contents=[frame.tobytes()])
    request.inputs.add(name="input", datatype="FP32", shape=[1, len(frame)])
    request.parameters["sequence_id"].int64_param = sequence_id
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    return request
