"""Values that several examples share."""

from __future__ import annotations

from typing import Any

TINY_IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAGUlEQVR42mNkYGhQYGDARCwMCgxYweCUAABobwJednxjlwAAAABJRU5ErkJggg=="
"""A PNG of 8 by 8 pixels (a colour gradient) in base64: short enough to read, and any model that accepts images takes it."""

CLASSES: list[dict[str, Any]] = [
    {"label": "espresso", "index": 967, "score": 0.951},
    {"label": "cup", "index": 968, "score": 0.024},
]

TIMING_MS: dict[str, float] = {"preprocess": 4.1, "queue": 0.2, "compute": 6.3}

MODEL: dict[str, Any] = {
    "name": "efficientnet_lite0",
    "version": "1",
    "state": "MODEL_STATE_READY",
    "reason": "",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "inputs": [
        {
            "name": "input",
            "datatype": "FP32",
            "shape": [-1, 3, 224, 224],
            "dimension_names": ["batch", "", "", ""],
            "accepts": "image",
            "description": "One photograph a row: an encoded image as BYTES, or its preprocessed pixels",
        }
    ],
    "outputs": [
        {
            "name": "probabilities",
            "datatype": "FP32",
            "shape": [-1, 1000],
            "dimension_names": ["batch", ""],
            "accepts": "",
            "description": "Softmax of the scores: they sum to 1",
        },
    ],
    "description": "EfficientNet-Lite0: names what a photograph shows, one of the 1000 ImageNet classes",
    "license": "Apache-2.0",
    "label_count": 1000,
}
"""The demo model as ``/v1/models`` shows it."""
