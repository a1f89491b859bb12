"""What every test gets: an event loop that must not block, and free ports."""

from __future__ import annotations

import inspect
import os
import socket
import tempfile
from collections.abc import Callable, Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from tests.support.stack import TRANSPORTS, Stack, running_stack, write_repository

# Nodes that tests start meter into a directory of the tests' own.
_STATE = tempfile.TemporaryDirectory(prefix="tensorgate-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name

collect_ignore = ["build_matrix"]
"""`make test-build` names it."""

WATCHED = ("core_grpc", "rest_facade")
"""The packages whose event loop serves requests. A blocking call with one of their frames on the stack fails the test."""


@pytest.fixture(autouse=True)
def unblocked_event_loop(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """In tests that are coroutines, raises where our code blocks the event loop: sleeping, reading a file, a lock, a blocking socket.

    Tests themselves may read files in a coroutine: nobody waits for them.
    """
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        yield None
        return
    with blockbuster_ctx(scanned_modules=list(WATCHED)) as detector:
        yield detector


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Gives ports on 127.0.0.1 that nobody listened on a moment ago, a different one each time.

    For programs that must be told their port. What can listen on port 0 should.
    """
    given: set[int] = set()

    def take() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in given:
                given.add(port)
                return port

    return take


@pytest.fixture(scope="session", params=TRANSPORTS)
def stack(request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running gateway over each transport, with models of every datatype, slow ones, failing ones and one that cannot be loaded."""
    repository = tmp_path_factory.mktemp("models")
    write_repository(repository)
    with running_stack(free_port, request.param, repository) as running:
        yield running
