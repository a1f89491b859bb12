"""The demo model as it is shipped, with its own recipe, on photographs whose answers are known."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import skimage

from core_grpc.processing.images import ImagePreprocessing, image_preprocessing_from_table, preprocess_image
from core_grpc.processing.labels import check_labels, labels_from_file, top_classes
from core_grpc.processing.outputs import apply_derived, derived_output
from core_grpc.types import Array, Datatype, TensorSpec

REPOSITORY = Path(__file__).resolve().parents[4]
MODEL = REPOSITORY / "tensorgate" / "demo_models" / "efficientnet_lite0"
PHOTOGRAPHS = Path(skimage.__file__).parent / "data"
CONFIG = tomllib.loads((MODEL / "model.toml").read_text(encoding="utf-8"))
INPUT = TensorSpec("input", Datatype.FP32, (-1, 3, 224, 224))
LOGITS = TensorSpec("logits", Datatype.FP32, (-1, 1000))


@pytest.fixture(scope="module")
def session() -> Any:
    return onnxruntime.InferenceSession(str(MODEL / "1" / "model.onnx"), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def recipe() -> ImagePreprocessing:
    return image_preprocessing_from_table(CONFIG["input"]["input"]["image"], INPUT)


def probabilities(session: Any, recipe: ImagePreprocessing, path: Path) -> Array:
    row = preprocess_image(path.read_bytes(), recipe, 50_000_000)
    (logits,) = session.run(["logits"], {"input": row[None]})
    derived = derived_output("probabilities", LOGITS, CONFIG["output"]["probabilities"]["apply"])
    scores: Array = apply_derived({"logits": logits}, [derived])["probabilities"][0]
    return scores


@pytest.mark.parametrize(
    ("photograph", "answer", "probability"),
    [
        ("coffee.png", ("espresso", 967), 0.951),
        ("camera.png", ("tripod", 872), 0.937),
        ("motorcycle_left.png", ("moped", 665), 0.533),
    ],
)
def test_known_photographs(session: Any, recipe: ImagePreprocessing, photograph: str, answer: tuple[str, int], probability: float) -> None:
    scores = probabilities(session, recipe, PHOTOGRAPHS / photograph)
    best = top_classes(scores, labels_from_file(MODEL / "labels.txt"), 1)[0]
    assert best[:2] == answer
    assert best[2] == pytest.approx(probability, abs=0.005)
    assert scores.sum() == pytest.approx(1, abs=1e-5)


def test_a_cat_is_a_cat(session: Any, recipe: ImagePreprocessing) -> None:
    best = top_classes(probabilities(session, recipe, PHOTOGRAPHS / "chelsea.png"), (), 3)
    assert {index for _, index, _ in best} == {281, 282, 285}


def test_the_sample_photograph(session: Any, recipe: ImagePreprocessing) -> None:
    best = top_classes(probabilities(session, recipe, REPOSITORY / "tensorgate" / "samples" / "coffee.jpg"), (), 1)[0]
    assert best[1] == 967
    assert best[2] == pytest.approx(0.957, abs=0.005)
    assert (REPOSITORY / "tensorgate" / "samples" / "coffee.jpg").stat().st_size < 100_000


def test_the_files_are_the_ones_of_the_sums() -> None:
    lines = (MODEL / "SHA256SUMS").read_text(encoding="ascii").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == {"1/model.onnx", "labels.txt"}
    for name, digest in sums.items():
        assert hashlib.sha256((MODEL / name).read_bytes()).hexdigest() == digest, name
    for page in ("efficientnet_lite0.md", "export_efficientnet_lite0.py"):
        assert sums["1/model.onnx"] in (REPOSITORY / "docs" / "models" / page).read_text(encoding="utf-8"), page


def test_the_recipe_fits_the_model(session: Any) -> None:
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("input", ["batch", 3, 224, 224])
    assert (made.name, made.shape) == ("logits", ["batch", 1000])
    check_labels(labels_from_file(MODEL / CONFIG["output"]["probabilities"]["labels"]), LOGITS)


def test_the_model_file_holds_no_path_of_the_machine_that_made_it() -> None:
    content = (MODEL / "1" / "model.onnx").read_bytes()
    assert b"site-packages" not in content
    assert b'File "' not in content
