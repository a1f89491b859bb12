"""The first promise: nobody ever gets another caller's rows, whatever meets in a batch."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from tests.support.stack import Stack

CALLERS, REQUESTS = 48, 25
SHAPES = ((1, 4), (1, 6), (2, 4), (3, 6), (8, 4), (1, 0))
"""Some share a batch, some never may."""


def numbered(number: int) -> tuple[pb.ModelInferRequest, bytes]:
    shape = SHAPES[number % len(SHAPES)]
    raw = np.full(shape, number, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name="id_fp32", id=str(number), inputs=[{"name": "X", "datatype": "FP32", "shape": shape}])
    request.raw_input_contents.append(raw)
    return request, raw


@pytest.mark.parametrize("door", ["node", "edge"])
async def test_every_caller_gets_its_own_rows(stack: Stack, door: str) -> None:
    target = stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc
    async with grpc.aio.insecure_channel(target) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )

        async def caller(first: int) -> int:
            for number in range(first, first + REQUESTS):
                request, raw = numbered(number)
                call = infer(request, timeout=30)
                if number % 17 == 0:
                    # Some leave at any moment; the others must not notice.
                    await asyncio.sleep(0)
                    call.cancel()
                    continue
                answer = await call
                assert (answer.id, list(answer.outputs[0].shape)) == (str(number), list(request.inputs[0].shape))
                assert answer.raw_output_contents[0] == raw
            return REQUESTS

        done = await asyncio.gather(*(caller(index * REQUESTS) for index in range(CALLERS)))
        assert sum(done) == CALLERS * REQUESTS
