"""POSIX shared memory: ``/dev/shm/<key>``, which ``shm_open`` and Python's ``multiprocessing.shared_memory`` make.

Opened, never created and never unlinked: it is the caller's. Read and written through the descriptor and not through a map: a caller who
makes the file smaller would end a process that touches a map of it by SIGBUS.
"""

from __future__ import annotations

import os
import re
import stat
import sys

from core_grpc.errors import InvalidArgument, Unsupported, quoted

_DIRECTORY = "/dev/shm"  # noqa: S108 (that is where shared memory is)
_KEY = re.compile(r"/?([^/\0]{1,255})")


class SystemMemory:
    """An open shared-memory object."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytes:
        """See ``Memory``."""
        data = os.pread(self._descriptor, size, offset)
        # Linux moves 2 GiB at once.
        while len(data) < size and (piece := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += piece
        return data

    def write(self, offset: int, data: bytes) -> None:
        """See ``Memory``."""
        # Beyond its end a write would make the caller's object larger.
        if os.fstat(self._descriptor).st_size < offset + len(data):
            raise OSError(0, "it has become smaller")
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, offset)
            left, offset = left[written:], offset + written

    def close(self) -> None:
        """See ``Memory``."""
        os.close(self._descriptor)


def open_system_memory(key: str, offset: int, byte_size: int) -> SystemMemory:
    """The shared-memory object of that key, with or without a leading slash.

    Raises:
        Unsupported: this system has none.
        InvalidArgument: no such object, not one that the server may open, or smaller than ``offset + byte_size``.
    """
    if sys.platform != "linux":
        raise Unsupported("system shared memory is offered on Linux only")
    match = _KEY.fullmatch(key)
    if match is None or match[1] in (".", ".."):
        raise InvalidArgument(f"key: wanted the name of a shared memory object, got {quoted(key)}")
    if byte_size < 1:
        raise InvalidArgument(f"byte_size: wanted at least 1, got {byte_size}")
    try:
        descriptor = os.open(f"{_DIRECTORY}/{match[1]}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidArgument(f"Unable to open shared memory region: {quoted(key)}: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size < offset + byte_size:
        os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"Unable to open shared memory region: {quoted(key)}: it is no shared memory object")
        raise InvalidArgument(
            f"Invalid offset + byte size for shared memory object {quoted(key)}: wanted at most {status.st_size}, "
            f"got {offset} + {byte_size}"
        )
    return SystemMemory(descriptor)
