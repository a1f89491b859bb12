"""Sends the smallest and largest value of every datatype with stock tritonclient and prints which came back equal, as JSON.

Arguments: the address, then the ways to send: ``grpc``, ``http binary``, ``http json``.
"""

import json
import sys

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.http

INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
FLOATS = {"FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64}


def arrays():
    yield "BOOL", np.array([[True, False, True], [False, False, True]])
    for name in INTEGERS:
        kind = np.dtype(name.lower())
        limits = np.iinfo(kind)
        yield name, np.array([[limits.min, limits.max, 0], [1, 2, 3]], kind)
    for name, kind in FLOATS.items():
        limits = ml_dtypes.finfo(kind)
        yield name, np.array([[limits.min, limits.max, 0], [0.5, -0.0, limits.tiny]], kind)
    yield "BYTES", np.array([[b"", b"a", "\u20ac".encode()], [b"a\0b", b"x" * 300, b"z"]], object)


def is_equal(client, module, name, array, is_binary):
    given = module.InferInput("X", list(array.shape), name)
    binary = {} if module is tritonclient.grpc else {"binary_data": is_binary}
    given.set_data_from_numpy(array, **binary)
    answer = client.infer(f"id_{name.lower()}", [given], outputs=[module.InferRequestedOutput("Y", **binary)])
    if module is tritonclient.grpc:
        response = answer.get_response()
        assert len(response.raw_output_contents) == len(response.outputs) == 1
        assert not response.outputs[0].HasField("contents")
    got = answer.as_numpy("Y")
    if name == "BYTES":
        got = np.array([item.encode() if isinstance(item, str) else item for item in got.ravel()], object).reshape(got.shape)
        return got.tolist() == array.tolist()
    return got.shape == array.shape and got.dtype == array.dtype and got.tobytes() == array.tobytes()


address, *ways = sys.argv[1:]
equal = {}
for way in ways:
    module = tritonclient.grpc if way == "grpc" else tritonclient.http
    client = module.InferenceServerClient(address)
    equal[way] = sorted(
        name
        for name, array in arrays()
        if not (way == "http json" and name in ("FP16", "BF16")) and is_equal(client, module, name, array, way != "http json")
    )
print(json.dumps(equal))
