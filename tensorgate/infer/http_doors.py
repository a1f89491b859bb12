"""The REST doors: the model's own JSON, an upload, and the Open Inference Protocol as JSON and with binary tensors.

The server preprocesses, whatever the door: what is sent is the photograph's file, as base64 text where the body is JSON. The Open Inference
Protocol knows scores but no labels, so those are asked for by the model's own JSON.
"""

from __future__ import annotations

import array
import base64
import json
import struct
import sys
from typing import Any
from urllib.parse import quote

import httpx

from tensorgate.infer.call import Answer, Call, ClassScore, InferError, best

_ALL_CLASSES = 1_000_000


def v1(call: Call) -> Answer:
    """``POST /v1/models/{model}:predict`` with ``{"instances": [{"b64": …}]}``."""
    return _own_answer(_own_json(call, call.top))


def upload(call: Call) -> Answer:
    """``POST /v1/models/{model}:predict`` with the file as a form would send it."""
    form = {"image": (call.photo_name, call.photo)}
    answer = post(call, f"/v1/models/{quote(call.model, safe='')}:predict", files=form, data={"top_k": str(call.top)})
    return _own_answer(_json(answer))


def v2(call: Call) -> Answer:
    """``POST /v2/models/{model}/infer`` with JSON both ways."""
    name, output = _tensor_names(call)
    text = base64.b64encode(call.photo).decode()
    inputs = [{"name": name, "datatype": "BYTES", "shape": [1, 1], "parameters": {"content_type": "base64"}, "data": [text]}]
    body = _json(post(call, _v2_path(call) + "/infer", json={"inputs": inputs, "outputs": [{"name": output}]}))
    return _scored(call, body, body["outputs"][0]["data"])


def v2_binary(call: Call) -> Answer:
    """``POST /v2/models/{model}/infer`` with tensors as bytes behind the JSON, both ways."""
    name, output = _tensor_names(call)
    element = struct.pack("<I", len(call.photo)) + call.photo
    tensor = {"name": name, "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(element)}}
    wanted = {"name": output, "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    answer = post(call, _v2_path(call) + "/infer", content=head + element, headers=headers)
    size = int(answer.headers["inference-header-content-length"])
    return _scored(call, json.loads(answer.content[:size]), _floats(answer.content[size:]))


def post(call: Call, path: str, **body: Any) -> httpx.Response:
    """A POST to the edge that answered 200.

    Raises:
        InferError: nobody answers, or not in time, or the answer is an error.
    """
    return _request(call, "POST", path, **body)


def _request(call: Call, method: str, path: str, **body: Any) -> httpx.Response:
    headers = {**call.credentials, **body.pop("headers", {})}
    try:
        answer = httpx.request(method, call.url.rstrip("/") + path, timeout=call.timeout_s, headers=headers, **body)
    except httpx.ConnectError as error:
        raise InferError(f"nothing answers at {call.url}: start it with `tensorgate serve`, or name another with --url") from error
    except httpx.TimeoutException as error:
        raise InferError(f"{call.url} did not answer within {call.timeout_s:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InferError(f"{call.url}: {error}") from error
    if answer.status_code != 200:
        raise InferError(_message(answer))
    return answer


def _message(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        text = body.get("error") or body["message"]
    except (ValueError, KeyError, AttributeError):
        text = answer.reason_phrase or "no reason given"
    return f"HTTP {answer.status_code}: {' '.join(str(text).split())}"


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError as error:
        raise InferError("the answer is not JSON: is this address a Tensorgate edge?") from error
    if not isinstance(body, dict):
        raise InferError("the answer is not a JSON object: is this address a Tensorgate edge?")
    return body


def _own_json(call: Call, top: int) -> dict[str, Any]:
    text = base64.b64encode(call.photo).decode()
    path = f"/v1/models/{quote(call.model, safe='')}:predict"
    return _json(post(call, path, json={"instances": [{"b64": text}], "top_k": top}))


def _own_answer(body: dict[str, Any]) -> Answer:
    rows = body.get("classes") or [[]]
    classes = tuple(ClassScore(item["label"], item["index"], item["score"]) for item in rows[0])
    return Answer(body["model"], body["version"], classes)


def _scored(call: Call, body: dict[str, Any], scores: list[float]) -> Answer:
    named = _own_answer(_own_json(call, _ALL_CLASSES)).classes
    labels = {item.index: item.label for item in named}
    return Answer(body["model_name"], body["model_version"], best(scores, labels, call.top))


def _v2_path(call: Call) -> str:
    return f"/v2/models/{quote(call.model, safe='')}"


def _tensor_names(call: Call) -> tuple[str, str]:
    """The model's input, and the output whose scores are shown: the probabilities where it has them, else the first."""
    metadata = _json(_request(call, "GET", _v2_path(call)))
    inputs = [item["name"] for item in metadata["inputs"]]
    outputs = [item["name"] for item in metadata["outputs"]]
    if len(inputs) != 1 or not outputs:
        raise InferError(
            f"model '{call.model}' has {len(inputs)} inputs and {len(outputs)} outputs: this command is for models of one photograph"
        )
    return inputs[0], "probabilities" if "probabilities" in outputs else outputs[0]


def _floats(data: bytes) -> list[float]:
    values = array.array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
