"""Labels files and the best classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.processing.labels import check_labels, labels_from_file, top_classes
from core_grpc.types import Datatype, TensorSpec


@pytest.mark.parametrize("content", [b"cat\nd\xc3\xb6g\n", b"cat\r\nd\xc3\xb6g\r\n", b"\xef\xbb\xbfcat\nd\xc3\xb6g"])
def test_one_label_a_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    assert labels_from_file(path) == ("cat", "dög")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "wants a printable label on each line, got none on line 1"),
        (b"cat\n\ndog\n", "wants a printable label on each line, got none on line 2"),
        (b"cat\ndog\n\n", "wants a printable label on each line, got none on line 3"),
        (b"c\x00t\n", "wants a printable label on each line, got none on line 1"),
        (b"cat\n\xff\n", "wants UTF-8, got a wrong byte at 4"),
    ],
)
def test_a_broken_labels_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed) as caught:
        labels_from_file(path)
    assert caught.value.message == f"labels file 'labels.txt' {message}"


def test_a_missing_labels_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.txt", "does not exist"), (tmp_path, "cannot be read")):
        with pytest.raises(ModelLoadFailed, match=reason) as caught:
            labels_from_file(path)
        assert str(tmp_path.parent) not in caught.value.message


def test_the_count_must_be_that_of_the_classes() -> None:
    check_labels(("a", "b"), TensorSpec("logits", Datatype.FP32, (-1, 2)))
    check_labels(("a", "b"), TensorSpec("logits", Datatype.FP32, (-1, -1)))
    with pytest.raises(ModelLoadFailed) as caught:
        check_labels(("a", "b"), TensorSpec("logits", Datatype.FP32, (-1, 3)))
    assert caught.value.message == "[output.logits] labels wants 3 of them, one for each class, got 2"


def test_the_best_come_first_and_equals_by_index() -> None:
    scores = np.array([0.1, 0.4, 0.1, 0.4, np.nan], np.float32)
    best = top_classes(scores, ("a", "b", "c", "d"), 3)
    assert [(label, index) for label, index, _ in best] == [("b", 1), ("d", 3), ("a", 0)]
    assert [score for _, _, score in best] == pytest.approx([0.4, 0.4, 0.1])
    assert [index for _, index, _ in top_classes(scores, (), 99)] == [1, 3, 0, 2, 4]
    assert top_classes(scores, ("a",), 5)[4][0] == ""
    assert top_classes(scores, (), 0) == []
    assert top_classes(np.array([1, 200, 3], np.uint8), (), 1) == [("", 1, 200.0)]
