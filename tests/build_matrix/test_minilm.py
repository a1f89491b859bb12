"""The sentence encoder that docs/models/minilm/build.py writes, run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from core_grpc.types import Array
from tests.build_matrix.cases import minilm
from tests.build_matrix.samples import places_of_words, tokens

SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "Someone is having a meal.",
    "The weather is cold today.",
    "A plane flies over the city.",
)


def embedded(session: onnxruntime.InferenceSession, sentences: tuple[str, ...], length: int) -> Array:
    """[sentences, 384]; every sentence is padded to ``length`` tokens."""
    found = [tokens(sentence, places_of_words()) for sentence in sentences]
    ids, mask = np.zeros((len(found), length), np.int64), np.zeros((len(found), length), np.int64)
    for row, places in enumerate(found):
        ids[row, : len(places)], mask[row, : len(places)] = places, 1
    (vectors,) = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})
    return np.asarray(vectors)


def test_alike_sentences_have_alike_vectors_whatever_the_padding(tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(minilm(tmp_path), providers=["CPUExecutionProvider"])
    vectors = embedded(session, SENTENCES, 12)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    likeness = vectors @ vectors[0]
    assert likeness[1:3] == pytest.approx([0.755, 0.689], abs=0.002)
    assert likeness[3:].max() < 0.14
    assert np.abs(embedded(session, SENTENCES, 40) - vectors).max() < 1e-6
