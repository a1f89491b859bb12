"""Calls a server with tritonclient.http and prints what came back, as JSON."""

import json
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def tensor(name, array, datatype, *, binary):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


client = triton.InferenceServerClient(sys.argv[1])
first, second = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
binary = [tensor("INPUT0", first, "INT32", binary=True), tensor("INPUT1", second, "INT32", binary=True)]
mixed = [tensor("INPUT0", first, "INT32", binary=False), tensor("INPUT1", second, "INT32", binary=True)]
texts = np.array([["", "a", "\u20ac"]], dtype=object)
as_json = [triton.InferRequestedOutput("OUTPUT1", binary_data=False)]
try:
    client.infer("nope", binary)
except InferenceServerException as error:
    message = error.message()
metadata = client.get_model_metadata("addsub_i32")
print(
    json.dumps(
        {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": [client.is_model_ready("addsub_i32"), client.is_model_ready("badload")],
            "metadata": [metadata["name"], [item["name"] for item in metadata["inputs"]]],
            "binary": client.infer("addsub_i32", binary).as_numpy("OUTPUT0")[0].tolist(),
            "json": client.infer("addsub_i32", mixed, outputs=as_json).as_numpy("OUTPUT1")[0].tolist(),
            "strings": [text.decode() for text in client.infer("id_bytes", [tensor("X", texts, "BYTES", binary=True)]).as_numpy("Y")[0]],
            "error": message,
        }
    )
)
