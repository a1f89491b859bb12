"""The demo model on real photographs, through every door of the command line: the same top 5, the same probabilities."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from skimage import data as photographs
from skimage.io import imsave

from tests.support.programs import ROOT
from tests.support.stack import TRANSPORTS, Stack, running_stack

DOORS = ("grpc", "grpc-web", "v1", "v2", "v2-binary", "upload")
EXPECTED = {
    "coffee": ({967: 0.95}, "espresso"),
    "camera": ({872: 0.94}, "tripod"),
    "motorcycle": ({665: 0.53}, "moped"),
    "chelsea": ({282: 0.39, 281: 0.17, 285: 0.36}, ""),
}
"""The top class and its probability (of `chelsea`, a cat, any of three), and the label."""


@pytest.fixture(scope="module", params=TRANSPORTS)
def demo(request: pytest.FixtureRequest, free_port: Callable[[], int]) -> Iterator[Stack]:
    with running_stack(free_port, request.param, None) as stack:
        yield stack


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The photographs that scikit-image ships, as PNG files: what is decoded is exactly what it ships."""
    folder = tmp_path_factory.mktemp("photos")
    paths = {}
    for name in EXPECTED:
        pixels = photographs.stereo_motorcycle()[0] if name == "motorcycle" else getattr(photographs, name)()
        paths[name] = folder / f"{name}.png"
        imsave(paths[name], pixels, check_contrast=False)
    return paths


def infer(demo: Stack, photo: Path, door: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tensorgate", "infer", "efficientnet_lite0", "--image", str(photo), "--door", door, "--json"]
    command += ["--url", demo.addresses.edge_url, "--grpc-address", demo.addresses.node_grpc]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    classes: list[dict[str, Any]] = json.loads(finished.stdout)["classes"]
    return classes


@pytest.mark.parametrize("name", EXPECTED)
def test_every_door_gives_the_same_top_five(demo: Stack, photos: dict[str, Path], name: str) -> None:
    answers = {door: infer(demo, photos[name], door) for door in DOORS}
    reference = answers["grpc"]
    wanted, label = EXPECTED[name]
    best = reference[0]
    assert best["index"] in wanted
    assert best["score"] == pytest.approx(wanted[best["index"]], abs=0.02)
    assert label in best["label"]
    assert len(reference) == 5
    for door, classes in answers.items():
        assert [item["label"] for item in classes] == [item["label"] for item in reference], door
        assert [item["index"] for item in classes] == [item["index"] for item in reference], door
        assert [item["score"] for item in classes] == pytest.approx([item["score"] for item in reference], abs=1e-5), door
