"""A repository loaded in the test's own process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from core_grpc.models.decoupled_model import DecoupledModel
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.settings import ModelsSettings


class Served(Registry):
    """A registry with what loads its models."""

    def __init__(self, repository: Path, settings: ModelsSettings | None = None) -> None:
        super().__init__()
        self.control = RepositoryControl(repository, settings or ModelsSettings(), self, grace_s=10.0)

    def find_decoupled(self, name: str) -> DecoupledModel:
        """As ``find``, of a model that streams."""
        model = self.find(name)
        assert isinstance(model, DecoupledModel)
        return model

    def find_reason(self, name: str, pattern: str) -> bool:
        """Whether the model is UNAVAILABLE for a reason that ``pattern`` matches; the reasons when it is not."""
        reasons = [entry.reason for entry in self.entries() if entry.name == name]
        assert any(re.search(pattern, reason) for reason in reasons), reasons
        return True


async def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Returns when ``condition`` holds, which nobody tells; fails when it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (see above)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(repository: Path, settings: ModelsSettings | None = None) -> AsyncIterator[Served]:
    """Loaded until the end of the block."""
    served = Served(repository, settings)
    await served.control.load_all()
    try:
        yield served
    finally:
        await served.control.close()
