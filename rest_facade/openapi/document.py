"""Puts the document together: one function for each door (v1.py, v2.py, facade.py), components as data."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from rest_facade.openapi.components import PARAMETERS, SCHEMAS
from rest_facade.openapi.facade import facade_paths
from rest_facade.openapi.management import management_paths
from rest_facade.openapi.responses import error_responses
from rest_facade.openapi.streams import stream_paths
from rest_facade.openapi.v1 import v1_paths
from rest_facade.openapi.v2 import v2_paths

API_VERSION = "1"
"""The version of what is described. It changes when a client has to; releases of the software do not change it."""

_DEFAULT_URL = "http://127.0.0.1:8080"

_DESCRIPTION = """\
One model repository behind several doors: the same models, values and errors in each.

* **`/v1`** is Tensorgate's own: short requests, uploads, the best classes by name.
* **`/v2`** is the [Open Inference Protocol](https://github.com/kserve/open-inference-protocol) with Triton's extensions: stock clients
  (`tritonclient.http`, KServe) work unchanged.
* **`/predict`** takes one array of numbers and gives one.
* gRPC and gRPC-Web are served at the same address (services `inference.GRPCInferenceService` and `tensorgate.v1.InferenceService`).

Try a photo:

```sh
curl -F image=@photo.jpg {url}/v1/models/efficientnet_lite0:predict
```

The examples name the demo model `efficientnet_lite0`, or `my_model` for a model of yours with one FP32 input `x` of shape [-1, 4].
"""

_TAGS = [
    {"name": "models", "description": "Which models there are, and what they take and give."},
    {"name": "predict", "description": "Inference in the model's own words."},
    {"name": "open inference protocol", "description": "Inference and metadata for clients of the Open Inference Protocol (v2)."},
    {"name": "management", "description": "Triton's extensions: configuration, statistics, the repository, shared memory, settings."},
    {"name": "health", "description": "For probes."},
]


def openapi_document(public_url: str = "") -> dict[str, Any]:
    """The OpenAPI 3.1 document. ``public_url`` is shown in commands; of it only the path is part of the server's address here, so that
    a page that shows the document calls the host it came from."""
    url = (public_url or _DEFAULT_URL).rstrip("/")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tensorgate",
            "version": API_VERSION,
            "summary": "Inference over REST.",
            "description": _DESCRIPTION.format(url=url),
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": urlsplit(url).path or "/", "description": "This server."}],
        "tags": _TAGS,
        "paths": {**v1_paths(), **v2_paths(), **stream_paths(), **management_paths(), **facade_paths()},
        "components": {"schemas": SCHEMAS, "parameters": PARAMETERS, "responses": error_responses()},
    }


def openapi_json(public_url: str = "") -> bytes:
    """The document as strict JSON."""
    return json.dumps(openapi_document(public_url), allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
