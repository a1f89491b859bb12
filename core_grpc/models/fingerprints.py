"""Fingerprints of the models of a repository: one for the names, sizes, times and identities of all files of a model.

Contents are not read: a repository may hold terabytes. A file that is overwritten gets another time of change, one that is moved into
place another identity (inode).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from core_grpc.models.change_detection import Fingerprint

_CACHES = frozenset({"__pycache__"})
"""Directories that running a model writes."""


def fingerprints(repository: Path) -> Mapping[str, Fingerprint]:
    """One for each model, by name; blocks on the disk. Hidden entries and plain files beside the models are no models.

    Raises:
        OSError: the repository cannot be read.
    """
    with os.scandir(repository) as entries:
        models = [entry.name for entry in entries if not entry.name.startswith(".") and not entry.is_file()]
    return {name: _fingerprint(repository / name) for name in models}


def _fingerprint(directory: Path) -> Fingerprint:
    digest = blake2b(digest_size=16)
    for line in sorted(_lines(os.fspath(directory), "", set())):
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.digest()


def _lines(directory: str, prefix: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """One line for each file and directory. What vanishes meanwhile is not there; a directory that was seen already ends a loop."""
    try:
        status = os.stat(directory)  # noqa: PTH116 (strings: thousands of files are looked at each time)
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError as error:
        yield f"{prefix}\0unreadable {error.errno}\n"
        return
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for entry in entries:
        if entry.name in _CACHES:
            continue
        path = f"{prefix}/{entry.name}"
        try:
            if entry.is_dir():
                yield f"{path}/\n"
                yield from _lines(entry.path, path, seen)
                continue
            status = entry.stat()
        except OSError:
            yield f"{path}\0gone\n"
            continue
        yield f"{path}\0{status.st_size} {status.st_mtime_ns} {status.st_ino} {status.st_mode}\n"
