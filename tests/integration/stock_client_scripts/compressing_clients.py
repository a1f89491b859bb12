"""Calls a server with every stock client and every compression they offer, and prints how many answers were right, as JSON."""

import asyncio
import json
import sys

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client

ALGORITHMS = ("gzip", "deflate", None)
VALUES = np.arange(3000, dtype=np.float32)[None]
ASKED = ({}, {"response-compression-algorithm": "gzip"}, {"response-compression-algorithm": "deflate"})


def inputs(library, **options):
    tensor = library.InferInput("X", list(VALUES.shape), "FP32")
    tensor.set_data_from_numpy(VALUES, **options)
    return [tensor]


def is_right(answer):
    return bool(np.array_equal(answer.as_numpy("Y"), VALUES))


def grpc_calls(client):
    return [
        client.infer("id_fp32", inputs(grpc_client), compression_algorithm=algorithm, headers=headers)
        for algorithm in ALGORITHMS
        for headers in ASKED
    ]


def http_calls(client):
    return [
        client.infer(
            "id_fp32",
            inputs(http_client, binary_data=binary),
            outputs=[http_client.InferRequestedOutput("Y", binary_data=binary)],
            request_compression_algorithm=request,
            response_compression_algorithm=response,
        )
        for binary in (True, False)
        for request in ALGORITHMS
        for response in ALGORITHMS
    ]


async def aio(target, http_target):
    async with grpc_aio_client.InferenceServerClient(target) as client:
        answers = await asyncio.gather(*grpc_calls(client))
    results = {"grpc.aio": sum(map(is_right, answers))}
    if http_target:
        async with http_aio_client.InferenceServerClient(http_target) as client:
            answers = await asyncio.gather(*http_calls(client))
            metadata = await client.get_model_metadata("id_fp32")
        results |= {"http.aio": sum(map(is_right, answers)), "metadata": metadata["name"]}
    return results


target, http_target = sys.argv[1], sys.argv[2]
results = {"grpc": sum(map(is_right, grpc_calls(grpc_client.InferenceServerClient(target))))}
if http_target:
    results["http"] = sum(map(is_right, http_calls(http_client.InferenceServerClient(http_target))))
print(json.dumps(results | asyncio.run(aio(target, http_target))))
