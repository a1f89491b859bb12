"""Calls a server with tritonclient.grpc and prints what came back, as JSON."""

import json
import sys
from concurrent.futures import Future

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def tensor(name, array, datatype):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def failure(call):
    try:
        call()
    except InferenceServerException as error:
        return error
    raise AssertionError("wanted an error")


client = triton.InferenceServerClient(sys.argv[1])
first, second = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
inputs = [tensor("INPUT0", first, "INT32"), tensor("INPUT1", second, "INT32")]
answer = client.infer(
    "addsub_i32", inputs, request_id="7", outputs=[triton.InferRequestedOutput("OUTPUT1"), triton.InferRequestedOutput("OUTPUT0")]
)
assert answer.get_response().id == "7"
texts = np.array([["", "a", "\u20ac"]], dtype=object)
halves = np.array([[0.5, -2.0]], dtype=ml_dtypes.bfloat16)
error = failure(lambda: client.infer("nope", inputs))
metadata = client.get_model_metadata("addsub_i32", as_json=True)
slow = [tensor("X", np.ones((1, 1), np.float32), "FP32")]


def many(count):
    futures = [Future() for _ in range(count)]
    for future in futures:
        client.async_infer("addsub_i32", inputs, lambda result, error, future=future: future.set_result((result, error)))
    answers = [future.result(20) for future in futures]
    return sum(error is None and (result.as_numpy("OUTPUT0") == first + second).all() for result, error in answers)


print(
    json.dumps(
        {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": [client.is_model_ready(name) for name in ("addsub_i32", "badload", "nope")],
            "name": client.get_server_metadata().name,
            "metadata": [metadata["name"], metadata["platform"], [i["name"] for i in metadata["inputs"]], metadata["inputs"][0]["shape"]],
            "sum": answer.as_numpy("OUTPUT0")[0].tolist(),
            "difference": answer.as_numpy("OUTPUT1")[0].tolist(),
            "strings": [text.decode() for text in client.infer("id_bytes", [tensor("X", texts, "BYTES")]).as_numpy("Y")[0]],
            "bf16": client.infer("id_bf16", [tensor("X", halves, "BF16")]).as_numpy("Y").astype(float)[0].tolist(),
            "error": [error.status(), error.message()],
            "async": int(many(8)),
            "deadline": failure(lambda: client.infer("slow", slow, client_timeout=0.05)).status(),
        }
    )
)
