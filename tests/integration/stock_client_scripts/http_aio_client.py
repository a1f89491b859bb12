"""Calls a server with tritonclient.http.aio and prints what came back, as JSON."""

import asyncio
import json
import sys

import numpy as np
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException


def tensor(name, array, datatype, *, binary):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


async def main():
    first, second = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    binary = [tensor("INPUT0", first, "INT32", binary=True), tensor("INPUT1", second, "INT32", binary=True)]
    mixed = [tensor("INPUT0", first, "INT32", binary=False), tensor("INPUT1", second, "INT32", binary=True)]
    texts = [tensor("X", np.array([["", "a", "\u20ac"]], dtype=object), "BYTES", binary=True)]
    as_json = [triton.InferRequestedOutput("OUTPUT1", binary_data=False)]
    async with triton.InferenceServerClient(sys.argv[1]) as client:
        message = ""
        try:
            await client.infer("nope", binary)
        except InferenceServerException as error:
            message = error.message()
        metadata = await client.get_model_metadata("addsub_i32")
        result = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": [await client.is_model_ready("addsub_i32"), await client.is_model_ready("badload")],
            "metadata": [metadata["name"], [item["name"] for item in metadata["inputs"]]],
            "binary": (await client.infer("addsub_i32", binary)).as_numpy("OUTPUT0")[0].tolist(),
            "json": (await client.infer("addsub_i32", mixed, outputs=as_json)).as_numpy("OUTPUT1")[0].tolist(),
            "strings": [text.decode() for text in (await client.infer("id_bytes", texts)).as_numpy("Y")[0]],
            "error": message,
        }
    print(json.dumps(result))


asyncio.run(main())
