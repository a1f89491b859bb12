"""The models of Triton's examples behind a gateway that allows what Triton's clients may ask for, over each transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.models import write_identity
from tests.support.python_models import write_count, write_faults, write_frames
from tests.support.stack import TRANSPORTS, Stack, running_stack, write_repository
from tests.support.triton_examples import write_examples

ALLOWING = {
    # Some of the example scripts insist on the name.
    "TENSORGATE_SERVER_NAME": "triton",
    "TENSORGATE_SERVER_SHARED_MEMORY": "true",
    "TENSORGATE_EDGE_MANAGEMENT": "true",
}


def write_labelled(repository: Path) -> None:
    """``probs``: answers with what it was given, four scores a row, with labels."""
    config = 'max_batch_size = 8\n[output.Y]\nlabels = "labels.txt"\n'
    write_identity(repository, "probs", {"X": ("FP32", [-1, 4])}, config)
    (repository / "probs" / "labels.txt").write_text("cat\ndog\nowl\nfox\n", encoding="utf-8")


@pytest.fixture(scope="session")
def example_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' models, beside those that other tests use."""
    repository = tmp_path_factory.mktemp("examples")
    write_examples(repository)
    write_repository(repository)
    write_count(repository)
    write_faults(repository)
    write_frames(repository)
    write_labelled(repository)
    return repository


@pytest.fixture(scope="session", params=TRANSPORTS)
def triton_stack(request: pytest.FixtureRequest, free_port: Callable[[], int], example_repository: Path) -> Iterator[Stack]:
    """A running gateway."""
    with running_stack(free_port, request.param, example_repository, ALLOWING) as running:
        yield running
