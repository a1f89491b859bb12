"""The two short services, through real servers: one tensor in, one out, and clear words where a model is not made for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from core_grpc.types import Datatype
from protos.inference import model_service_pb2, model_service_pb2_grpc
from protos.trt import inference_service_pb2, inference_service_pb2_grpc
from tests.support.models import write_addsub_i32, write_id
from tests.support.stack import TRANSPORTS, Stack, running_stack


@pytest.fixture(scope="module", params=TRANSPORTS)
def channel(
    request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[grpc.Channel]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_addsub_i32(repository)
    for datatype in (Datatype.INT8, Datatype.FP32, Datatype.BYTES):
        write_id(repository, datatype)
    default = {"TENSORGATE_MODELS_DEFAULT_MODEL": "id_int8"}
    with running_stack(free_port, request.param, repository, default) as stack, grpc.insecure_channel(stack.addresses.node_grpc) as opened:
        yield opened


def floats(channel: grpc.Channel, data: list[float], shape: list[int]) -> model_service_pb2.PredictResponse:
    request = model_service_pb2.PredictRequest(data=data, shape=shape)
    answer: model_service_pb2.PredictResponse = model_service_pb2_grpc.ModelServiceStub(channel).Predict(request, timeout=10)
    return answer


def raw(channel: grpc.Channel, model: str, tensor: bytes, shape: list[int]) -> inference_service_pb2.InferResponse:
    request = inference_service_pb2.InferRequest(model_name=model, input_tensor=tensor, shape=shape)
    answer: inference_service_pb2.InferResponse = inference_service_pb2_grpc.InferenceServiceStub(channel).Predict(request, timeout=10)
    return answer


@pytest.mark.parametrize("shape", [[1, 3], [3]], ids=["with batch", "without batch"])
def test_floats_through_the_default_model(channel: grpc.Channel, shape: list[int]) -> None:
    answer = floats(channel, [-128, 0, 127], shape)
    assert list(answer.result) == [-128, 0, 127]
    assert answer.latency_ms > 0


@pytest.mark.parametrize("shape", [[1, 2], [2]], ids=["with batch", "without batch"])
def test_bytes_through_a_named_model(channel: grpc.Channel, shape: list[int]) -> None:
    tensor = np.array([0.5, -2.0], np.float32).tobytes()
    answer = raw(channel, "id_fp32", tensor, shape)
    assert answer.output_tensor == tensor
    assert answer.inference_time_ms > 0


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda c: floats(c, [128], [1, 1]), grpc.StatusCode.INVALID_ARGUMENT, ["'X'", "element 0", "INT8", "128"]),
        (lambda c: floats(c, [0.5], [1, 1]), grpc.StatusCode.INVALID_ARGUMENT, ["'X'", "0.5"]),
        (lambda c: floats(c, [1, 2], [1, 3]), grpc.StatusCode.INVALID_ARGUMENT, ["'X'", "3 elements", "got 2"]),
        (lambda c: floats(c, [1], [-1]), grpc.StatusCode.INVALID_ARGUMENT, ["'X'", "-1"]),
        (lambda c: raw(c, "nope", b"", [1]), grpc.StatusCode.NOT_FOUND, ["nope"]),
        (lambda c: raw(c, "id_fp32", b"123", [1]), grpc.StatusCode.INVALID_ARGUMENT, ["'X'", "4 bytes", "got 3"]),
        (lambda c: raw(c, "addsub_i32", b"", [16]), grpc.StatusCode.FAILED_PRECONDITION, ["addsub_i32", "2 inputs", "2 outputs"]),
        (lambda c: raw(c, "id_bytes", b"", [1]), grpc.StatusCode.FAILED_PRECONDITION, ["id_bytes", "BYTES"]),
    ],
    ids=["out of range", "no integer", "too few", "negative", "unknown model", "too short", "two inputs", "BYTES"],
)
def test_what_does_not_fit_is_named(
    channel: grpc.Channel, call: Callable[[grpc.Channel], object], code: grpc.StatusCode, words: list[str]
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel)
    error: grpc.Call = caught.value  # type: ignore[assignment]
    assert error.code() is code, error.details()
    assert [word for word in words if word not in (error.details() or "")] == [], error.details()


def test_without_a_default_one_of_many_models_must_be_named(stack: Stack) -> None:
    with grpc.insecure_channel(stack.addresses.node_grpc) as opened, pytest.raises(grpc.RpcError) as caught:
        floats(opened, [1], [1])
    error: grpc.Call = caught.value  # type: ignore[assignment]
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "TENSORGATE_MODELS_DEFAULT_MODEL" in (error.details() or "")
