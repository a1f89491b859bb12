"""Memory that a region is made of, in the test's own process."""

from __future__ import annotations


class BytesMemory:
    """Satisfies ``Memory``. Fails where it is used after it was let go."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.is_open = True

    def read(self, offset: int, size: int) -> bytes:
        """What is there."""
        assert self.is_open
        return bytes(self.content[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        """Raises OSError beyond the end."""
        assert self.is_open
        if offset + len(data) > len(self.content):
            raise OSError(0, "too small")
        self.content[offset : offset + len(data)] = data

    def close(self) -> None:
        """Once."""
        assert self.is_open
        self.is_open = False
