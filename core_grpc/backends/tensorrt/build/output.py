"""Where a plan goes: seen before the build, which takes long, and left as it was where there is no plan in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core_grpc.backends.tensorrt.build.failures import BuildRefused


def check_output(plan: Path) -> None:
    """Looks whether a plan could be written; the disk may still be full then.

    Raises:
        BuildRefused: it could not; the text names the path and says why.
    """
    try:
        if plan.is_dir():
            raise BuildRefused(f"-o: {plan} is a directory, and the plan would be a file of that name")
        there = next(directory for directory in plan.absolute().parents if directory.exists())
    except OSError as error:
        raise BuildRefused(f"-o: {plan} cannot be written: {error.strerror}") from None
    if not there.is_dir():
        raise BuildRefused(f"-o: {plan} cannot be written: {there} is no directory")
    # Root may write everywhere, but not on a read-only file system: access() knows both.
    if not os.access(there, os.W_OK | os.X_OK):
        raise BuildRefused(f"-o: {plan} cannot be written: no right to write in {there}, or it is read-only")


@contextmanager
def directory_of(plan: Path) -> Iterator[None]:
    """Makes the plan's directory, with all above it; when the context fails, those that it made are gone again.

    Raises:
        OSError: it cannot be made.
    """
    made = [directory for directory in plan.absolute().parents if not directory.exists()]
    try:
        plan.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for directory in made:
            with suppress(OSError):  # Somebody else has put something there.
                directory.rmdir()
        raise


__all__ = ["check_output", "directory_of"]
