"""POSIX shared memory as the server opens it: real objects in /dev/shm."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as SharedObject
from pathlib import Path

import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.shared_memory.system import open_system_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="POSIX shared memory is offered on Linux only")

SIZE = 4096


@pytest.fixture
def shared() -> Iterator[SharedObject]:
    made = SharedObject(create=True, size=SIZE)
    try:
        yield made
    finally:
        made.close()
        made.unlink()


@pytest.mark.parametrize("slash", ["", "/"])
def test_reads_and_writes_the_callers_object_and_leaves_it_there(shared: SharedObject, slash: str) -> None:
    content = shared.buf
    assert content is not None
    content[:4] = b"abcd"
    memory = open_system_memory(slash + shared.name, 0, SIZE)
    assert memory.read(1, 3) == b"bcd"
    memory.write(SIZE - 2, b"yz")
    memory.close()
    assert bytes(content[SIZE - 2 :]) == b"yz"
    assert Path("/dev/shm", shared.name).exists()


@pytest.mark.parametrize("key", ["", "/", ".", "..", "../x", "/../x", "/dev/mem", "//x", "x/y", "x\0y", "no such object", "x" * 300])
def test_keys_that_name_no_object_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgument):
        open_system_memory(key, 0, 1)


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 0), (0, SIZE + 1), (1, SIZE), (SIZE, 1), ((1 << 64) - 1, 1), (0, (1 << 64) - 1)])
def test_parts_outside_the_object_are_refused(shared: SharedObject, offset: int, byte_size: int) -> None:
    with pytest.raises(InvalidArgument, match=r"byte.size"):
        open_system_memory(shared.name, offset, byte_size)


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_what_is_no_shared_memory_object_is_refused(shared: SharedObject, kind: str) -> None:
    path = Path("/dev/shm", f"{shared.name}_{kind}")
    if kind == "symlink":
        path.symlink_to("/etc/hostname")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    try:
        with pytest.raises(InvalidArgument, match="Unable to open shared memory region"):
            open_system_memory(path.name, 0, 1)
    finally:
        path.rmdir() if kind == "directory" else path.unlink()


def test_an_object_that_its_owner_truncates_is_neither_read_beyond_its_end_nor_made_larger(shared: SharedObject) -> None:
    memory = open_system_memory(shared.name, 0, SIZE)
    path = Path("/dev/shm", shared.name)
    os.truncate(path, 10)
    assert memory.read(0, SIZE) == bytes(10)
    with pytest.raises(OSError, match="smaller"):
        memory.write(8, b"abcd")
    assert path.stat().st_size == 10
    memory.close()


def test_what_the_kernel_moves_in_several_pieces_is_whole(shared: SharedObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beyond 2 GiB, in small: by a fake kernel that moves three bytes at once."""
    pread, pwrite = os.pread, os.pwrite

    def fake_pread(descriptor: int, size: int, offset: int) -> bytes:
        return pread(descriptor, min(size, 3), offset)

    def fake_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        return pwrite(descriptor, data[:3], offset)

    monkeypatch.setattr(os, "pread", fake_pread)
    monkeypatch.setattr(os, "pwrite", fake_pwrite)
    memory = open_system_memory(shared.name, 0, SIZE)
    memory.write(SIZE - 8, b"abcdefgh")
    assert memory.read(SIZE - 9, 9) == b"\0abcdefgh"
    assert memory.read(SIZE - 8, 100) == b"abcdefgh"
    memory.close()
