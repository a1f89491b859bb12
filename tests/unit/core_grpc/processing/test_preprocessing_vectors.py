"""The vectors for clients that preprocess themselves: what the server computes, and what its documentation says."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from core_grpc.processing.images import image_preprocessing_from_table, preprocess_image
from core_grpc.types import Datatype, TensorSpec
from tests.support.preprocessing_vectors import PATH, Case, cases, reference, served

VECTORS = json.loads(PATH.read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_the_server_gives_the_numbers_of_the_file(vector: dict[str, Any]) -> None:
    spec = TensorSpec("input", Datatype(vector["datatype"]), tuple(vector["shape"]))
    recipe = image_preprocessing_from_table(vector["image"], spec)
    row = preprocess_image(base64.b64decode(vector["image_base64"]), recipe, 1_000_000)
    assert row.shape == tuple(vector["expected_shape"]) == spec.shape[1:]
    assert row.dtype == spec.datatype.dtype
    assert row.flags.c_contiguous
    # Pillow's own rounding may differ by one step between the processors that it has code for.
    np.testing.assert_allclose(row.ravel().astype(np.float64), vector["expected"], rtol=0, atol=max(vector["tolerance"], 1e-6))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_documentation_computed_in_numpy_agrees(case: Case) -> None:
    levels = np.abs(served(case).astype(np.float64) - reference(case)) * np.min(case.table.get("std", 1.0))
    assert levels.max() <= case.tolerance_levels + (0.07 if case.datatype == "FP16" else 0)


def test_every_case_is_in_the_file() -> None:
    assert [vector["name"] for vector in VECTORS] == [case.name for case in cases()]


def test_a_swapped_axis_or_channel_would_be_seen() -> None:
    for case in cases():
        row = served(case).astype(np.float64)
        for wrong in (row[::-1], row[:, ::-1], row[:, :, ::-1]):
            if wrong.shape[0] > 1 and not case.name.startswith("grey"):
                assert np.abs(wrong - row).max() * np.min(case.table.get("std", 1.0)) > 20, case.name
