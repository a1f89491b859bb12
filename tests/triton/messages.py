"""Requests for the models of ``triton_stack``, and where to send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np

from protos.inference import grpc_service_pb2 as pb
from protos.tensorgate.v1 import inference_pb2 as tg
from tests.support.stack import Stack

DOORS = ["node", "edge"]


def target(stack: Stack, door: str) -> str:
    """Where that door takes gRPC."""
    return stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc


def infer(model: str, rows: Sequence[Sequence[float]], request_id: str = "", datatype: str = "FP32") -> pb.ModelInferRequest:
    """Of a model with the one input X."""
    array = np.array(rows, bool if datatype == "BOOL" else np.float32)
    request = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[array.tobytes()])
    request.inputs.add(name="X", datatype=datatype, shape=array.shape)
    return request


def repeat(values: Sequence[int], delay_ms: int = 0, request_id: str = "") -> pb.ModelInferRequest:
    """Of ``repeat_int32``, in the Open Inference Protocol."""
    arrays = {"IN": np.array(values, np.int32), "DELAY": np.full(len(values), delay_ms, np.uint32), "WAIT": np.zeros(1, np.uint32)}
    request = pb.ModelInferRequest(model_name="repeat_int32", id=request_id)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype="INT32" if name == "IN" else "UINT32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def predict(model: str, request_id: str = "", **inputs: tuple[str, list[int]]) -> tg.PredictRequest:
    """Datatype and values by input name."""
    request = tg.PredictRequest(model=model, id=request_id)
    for name, (datatype, values) in inputs.items():
        field = "int64_values" if datatype == "UINT32" else "int_values" if datatype.startswith("INT") else "float_values"
        request.inputs.add(name=name, datatype=datatype, shape=[len(values)], **{field: values})
    return request


def repeated(values: list[int], delay_ms: int = 0, request_id: str = "") -> tg.PredictRequest:
    """Of ``repeat_int32``."""
    delays = ("UINT32", [delay_ms] * len(values))
    return predict("repeat_int32", request_id, IN=("INT32", values), DELAY=delays, WAIT=("UINT32", [0]))


def counted(end: int, fail_at: int = -1, size: int = 1, request_id: str = "") -> tg.PredictRequest:
    """Of ``count``."""
    request = predict("count", request_id, N=("INT32", [end, fail_at, size]))
    request.encoding = tg.TENSOR_ENCODING_RAW
    return request


def row(model: str, value: float, request_id: str = "") -> tg.PredictRequest:
    """One row with one number."""
    request = tg.PredictRequest(model=model, id=request_id)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1], float_values=[value])
    return request


async def sent(requests: Sequence[Any], hold: asyncio.Event | None = None) -> AsyncIterator[Any]:
    """The requests, then the half-close, which ``hold`` may put off."""
    for request in requests:
        yield request
    if hold:
        await hold.wait()


def number_of(response: pb.ModelInferResponse) -> float:
    """The first number of the first output."""
    return float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])
