"""One gateway with identities for each transport, shared by every attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.identified import Identified, identified_stack
from tests.support.stack import TRANSPORTS


@pytest.fixture(scope="session", params=TRANSPORTS)
def identified(
    request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Identified]:
    """Over each transport."""
    with identified_stack(free_port, request.param, tmp_path_factory.mktemp("identified")) as running:
        yield running
