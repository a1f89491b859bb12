"""The regions that callers have registered, by name, and what requests may do with them.

Off unless the setting ``server.shared_memory`` allows it: whoever may register a region makes the server read and write a file of this
machine's shared memory. A region that is unregistered while requests will still write their outputs to it is let go when they are done.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from core_grpc.errors import AlreadyExists, GatewayError, InvalidArgument, NotFound, Unsupported, quoted
from core_grpc.types import ParameterValue, RequestedOutput

REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
BYTE_SIZE = "shared_memory_byte_size"


class Memory(Protocol):
    """A piece of memory outside this process. Calls may come from any thread."""

    def read(self, offset: int, size: int) -> bytes:
        """A copy of ``size`` bytes from ``offset``; fewer where the memory has become smaller."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Overwrites what is at ``offset``.

        Raises:
            OSError: it cannot be written.
        """
        ...

    def close(self) -> None:
        """Lets it go."""
        ...


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A registered region, as callers see it."""

    name: str
    kind: str
    """``system`` or ``cuda``."""
    byte_size: int
    key: str = ""
    """System: the name under which the memory is shared."""
    offset: int = 0
    """System: where in that memory the region begins."""
    device_id: int = 0
    """CUDA: which GPU."""


class Region:
    """A registered region and those who use it."""

    def __init__(self, status: RegionStatus, memory: Memory) -> None:
        self.status = status
        self._memory = memory
        self._users = 1
        """The registration is one."""
        self._lock = threading.Lock()

    def use(self) -> None:
        """One more who will need it."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """One fewer; the last one lets the memory go."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self._memory.close()

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` within the region; fewer where the memory has become smaller."""
        return self._memory.read(self.status.offset + offset, size)

    def write(self, offset: int, data: bytes) -> None:
        """Overwrites what is at ``offset`` within the region.

        Raises:
            InvalidArgument: the memory cannot be written (any more).
        """
        try:
            self._memory.write(self.status.offset + offset, data)
        except OSError as error:
            raise InvalidArgument(f"shared memory region {quoted(self.status.name)} cannot be written: {error.strerror}") from None


class OutputPlace:
    """Where in a region an output goes; holds the region until it is released."""

    def __init__(self, output: str, region: Region, offset: int, byte_size: int) -> None:
        self.output = output
        self.region = region
        self.offset = offset
        self.byte_size = byte_size
        self._is_held = True
        region.use()

    def write(self, data: bytes) -> Mapping[str, ParameterValue]:
        """Writes the output's raw form; gives the parameters by which the answer says where it is.

        Raises:
            InvalidArgument: it is larger than its place, or the memory cannot be written.
        """
        if len(data) > self.byte_size:
            raise InvalidArgument(
                f"shared memory size specified with the request for output {quoted(self.output)} ({self.byte_size} bytes) should be at "
                f"least {len(data)} bytes to hold the results"
            )
        self.region.write(self.offset, data)
        offset = {OFFSET: self.offset} if self.offset else {}
        return {REGION: self.region.status.name, **offset, BYTE_SIZE: len(data)}

    def release(self) -> None:
        """Nothing more will be written."""
        if self._is_held:
            self._is_held = False
            self.region.release()

    def __del__(self) -> None:
        """A caller who leaves while a thread still reads the request: nobody gets the places that it makes."""
        self.release()


class SharedMemory:
    """The registry. Regions are added and removed on the event loop; requests may use them on any thread."""

    def __init__(self, *, is_allowed: bool, refusal: str = "the server's setting shared_memory (group server) is false") -> None:
        self.is_allowed = is_allowed
        self._refusal = refusal
        self._regions: dict[str, Region] = {}

    def check_allowed(self) -> None:
        """Raises Unsupported where shared memory is not allowed."""
        if not self.is_allowed:
            raise Unsupported(f"client shared memory is not allowed here: {self._refusal}")

    def check_free(self, name: str) -> None:
        """Raises InvalidArgument, AlreadyExists: a region cannot have this name."""
        if not name:
            raise InvalidArgument("a shared memory region needs a name")
        if name in self._regions:
            raise AlreadyExists(f"shared memory region {quoted(name)} already in manager")

    def add(self, status: RegionStatus, memory: Memory) -> None:
        """Registers a region. Where another has taken its name, the memory is let go.

        Raises:
            as ``check_free``.
        """
        try:
            self.check_free(status.name)
        except GatewayError:
            memory.close()
            raise
        self._regions[status.name] = Region(status, memory)

    def remove(self, kind: str, name: str = "") -> None:
        """Unregisters a region of a kind, or all; one that is not there is no error, as with Triton."""
        for region in list(self._regions.values()):
            if region.status.kind == kind and name in ("", region.status.name):
                del self._regions[region.status.name]
                region.release()

    def statuses(self, kind: str, name: str = "") -> Sequence[RegionStatus]:
        """The regions of a kind, or one.

        Raises:
            NotFound: there is no such region.
        """
        found = [region.status for region in self._regions.values() if region.status.kind == kind and name in ("", region.status.name)]
        if name and not found:
            raise NotFound(f"Unable to find {kind} shared memory region: {quoted(name)}")
        return found

    def close(self) -> None:
        """Unregisters everything."""
        for kind in ("system", "cuda"):
            self.remove(kind)

    def read(self, name: str, offset: int, byte_size: int) -> bytes:
        """A copy of a part of a region, for an input.

        Raises:
            Unsupported, NotFound, InvalidArgument: not allowed, no such region, or not within it.
        """
        region = self._part_of(name, offset, byte_size)
        data = region.read(offset, byte_size)
        if len(data) != byte_size:
            raise InvalidArgument(f"shared memory region {quoted(name)} has become smaller: wanted {byte_size} bytes, got {len(data)}")
        return data

    def with_places(self, outputs: tuple[RequestedOutput, ...]) -> tuple[RequestedOutput, ...]:
        """The outputs, those for shared memory with their place, which whoever gets them must release.

        Raises:
            as ``read``.
        """
        if not any(REGION in output.parameters for output in outputs):
            return outputs
        placed: list[RequestedOutput] = []
        try:
            placed.extend(self._placed(output) for output in outputs)
        except BaseException:
            release_places(tuple(placed))
            raise
        return tuple(placed)

    def read_input(self, where: str, parameters: Mapping[str, ParameterValue]) -> bytes:
        """A copy of what an input's parameters name.

        Raises:
            as ``read``.
        """
        self.check_allowed()
        return self.read(*place_parameters(where, parameters))

    def _placed(self, output: RequestedOutput) -> RequestedOutput:
        if REGION not in output.parameters:
            return output
        self.check_allowed()
        where = f"output {quoted(output.name)}"
        if output.parameters.get("classification"):
            raise InvalidArgument(f"{where}: classification cannot be combined with shared memory")
        if output.parameters.get("binary_data"):
            raise InvalidArgument(f"{where}: binary_data cannot be combined with shared memory")
        name, offset, byte_size = place_parameters(where, output.parameters)
        return output._replace(place=OutputPlace(output.name, self._part_of(name, offset, byte_size), offset, byte_size))

    def _part_of(self, name: str, offset: int, byte_size: int) -> Region:
        self.check_allowed()
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: {quoted(name)}")
        if offset + byte_size > region.status.byte_size:
            raise InvalidArgument(
                f"Invalid offset + byte size for shared memory region: {quoted(name)}: wanted at most {region.status.byte_size}, "
                f"got {offset} + {byte_size}"
            )
        return region


def place_parameters(where: str, parameters: Mapping[str, ParameterValue]) -> tuple[str, int, int]:
    """Region, offset and byte size from a tensor's parameters.

    Raises:
        InvalidArgument: one is missing or of the wrong kind.
    """
    name, offset, byte_size = parameters[REGION], parameters.get(OFFSET, 0), parameters.get(BYTE_SIZE)
    if not isinstance(name, str):
        raise InvalidArgument(f"{where}: {REGION}: wanted a string")
    return name, _count(where, OFFSET, offset), _count(where, BYTE_SIZE, byte_size)


def _count(where: str, key: str, value: ParameterValue | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{where}: {key}: wanted a non-negative integer")
    return value


def release_places(outputs: tuple[RequestedOutput, ...]) -> None:
    """Lets go of the regions that ``with_places`` held."""
    for output in outputs:
        if output.place is not None:
            output.place.release()
