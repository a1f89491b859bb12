"""The registry of regions, and how long a region is held."""

from __future__ import annotations

import pytest

from core_grpc.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported
from core_grpc.shared_memory.regions import BYTE_SIZE, OFFSET, REGION, RegionStatus, SharedMemory, release_places
from core_grpc.types import ParameterValue, RequestedOutput
from tests.support.bytes_memory import BytesMemory


def registry(memory: BytesMemory, *, offset: int = 0, byte_size: int = 8) -> SharedMemory:
    made = SharedMemory(is_allowed=True)
    made.add(RegionStatus("r", "system", byte_size, "key", offset), memory)
    return made


def place(
    offset: ParameterValue = 0, byte_size: ParameterValue = 4, region: ParameterValue = "r", **more: ParameterValue
) -> RequestedOutput:
    return RequestedOutput("Y", {REGION: region, OFFSET: offset, BYTE_SIZE: byte_size, **more})


def test_offsets_within_a_region_are_added_to_its_own_once() -> None:
    memory = BytesMemory(b"..abcdefgh..")
    assert registry(memory, offset=2).read("r", 3, 2) == b"de"
    (output,) = registry(memory, offset=2).with_places((place(4, 4),))
    assert output.place
    output.place.write(b"WXYZ")
    assert memory.content == b"..abcdWXYZ.."


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 9), (8, 1), (1, 8), ((1 << 63) - 1, 1)])
def test_no_part_outside_the_region_is_read_or_written(offset: int, byte_size: int) -> None:
    shared = registry(BytesMemory(b"..abcdefgh.."), offset=2)
    with pytest.raises(InvalidArgument, match="Invalid offset"):
        shared.read("r", offset, byte_size)
    with pytest.raises(InvalidArgument, match="Invalid offset"):
        shared.with_places((place(offset, byte_size),))


@pytest.mark.parametrize(
    "output",
    [
        *(place(**{OFFSET: wrong}) for wrong in (-1, True, "0", 1.5)),
        *(place(**{BYTE_SIZE: wrong}) for wrong in (-1, True, "4", 1.5)),
        place(**{REGION: 5}),
        RequestedOutput("Y", {REGION: "r"}),
    ],
)
def test_parameters_of_the_wrong_kind_are_refused(output: RequestedOutput) -> None:
    with pytest.raises(InvalidArgument, match="output 'Y': shared_memory_"):
        registry(BytesMemory(bytes(8))).with_places((output,))


@pytest.mark.parametrize("other", ["classification", "binary_data"])
def test_outputs_in_shared_memory_are_values_and_not_in_the_body(other: str) -> None:
    with pytest.raises(InvalidArgument, match=f"output 'Y': {other} cannot be combined with shared memory"):
        registry(BytesMemory(bytes(8))).with_places((place(**{other: 1}),))


def test_an_answer_says_where_its_output_is_and_nothing_else() -> None:
    with_others = place(4, 4, mine=1 << 63)  # No signed integer: what is echoed must be written in the protocol's messages.
    at_start = place(0, 8)
    for wanted, told in ((with_others, {REGION: "r", OFFSET: 4, BYTE_SIZE: 2}), (at_start, {REGION: "r", BYTE_SIZE: 2})):
        (output,) = registry(BytesMemory(bytes(8))).with_places((wanted,))
        assert output.place
        assert output.place.write(b"ab") == told


def test_an_output_larger_than_its_place_is_refused_and_nothing_is_written() -> None:
    memory = BytesMemory(b"abcdefgh")
    (output,) = registry(memory).with_places((place(0, 4),))
    assert output.place
    with pytest.raises(InvalidArgument, match=r"output 'Y' \(4 bytes\) should be at least 5 bytes to hold the results"):
        output.place.write(b"12345")
    assert memory.content == b"abcdefgh"


def test_memory_that_has_become_smaller_is_an_error_of_the_caller() -> None:
    memory = BytesMemory(b"abcdefgh")
    shared = registry(memory)
    (output,) = shared.with_places((place(0, 8),))
    del memory.content[4:]
    with pytest.raises(InvalidArgument, match="has become smaller: wanted 8 bytes, got 4"):
        shared.read("r", 0, 8)
    assert output.place
    with pytest.raises(InvalidArgument, match="'r' cannot be written: too small"):
        output.place.write(b"12345678")


def test_a_region_in_use_is_let_go_when_the_request_is_done() -> None:
    memory = BytesMemory(bytes(8))
    shared = registry(memory)
    outputs = shared.with_places((place(), place(4)))
    shared.remove("system", "r")
    with pytest.raises(NotFound):
        shared.read("r", 0, 1)
    assert outputs[0].place
    outputs[0].place.write(b"late")
    assert memory.is_open
    release_places(outputs)
    assert memory.content == b"late\0\0\0\0"
    assert not memory.is_open


def test_a_place_is_let_go_once_and_also_by_whoever_loses_it() -> None:
    memory = BytesMemory(bytes(8))
    shared = registry(memory)
    outputs = shared.with_places((place(),))
    release_places(outputs)
    release_places(outputs)
    assert shared.read("r", 0, 8) == bytes(8)
    lost = shared.with_places((place(),))
    shared.remove("system")
    assert memory.is_open
    del lost
    assert not memory.is_open


def test_places_are_let_go_where_a_later_output_is_refused() -> None:
    memory = BytesMemory(bytes(8))
    shared = registry(memory)
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'other'"):
        shared.with_places((place(), place(**{REGION: "other"})))
    shared.remove("system")
    assert not memory.is_open


def test_a_name_is_taken_once_whatever_the_kind_and_is_free_after_it_is_removed() -> None:
    shared = registry(BytesMemory(bytes(8)))
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        shared.check_free("r")
    shared.remove("cuda", "r")
    shared.remove("system", "other")
    assert [status.name for status in shared.statuses("system")] == ["r"]
    with pytest.raises(NotFound, match="Unable to find cuda shared memory region: 'r'"):
        shared.statuses("cuda", "r")
    shared.remove("system", "r")
    shared.check_free("r")
    with pytest.raises(InvalidArgument, match="needs a name"):
        shared.check_free("")


def test_everything_is_let_go_at_the_end() -> None:
    memories = [BytesMemory(bytes(8)), BytesMemory(bytes(8))]
    shared = SharedMemory(is_allowed=True)
    shared.add(RegionStatus("a", "system", 8), memories[0])
    shared.add(RegionStatus("b", "cuda", 8), memories[1])
    shared.close()
    assert not any(memory.is_open for memory in memories)


def test_where_it_is_not_allowed_no_request_may_name_a_region() -> None:
    shared = SharedMemory(is_allowed=False)
    with pytest.raises(Unsupported, match="setting shared_memory"):
        shared.read_input("input 'X'", {REGION: "r", BYTE_SIZE: 4})
    with pytest.raises(Unsupported, match="setting shared_memory"):
        shared.with_places((place(),))
    assert shared.with_places((RequestedOutput("Y"),)) == (RequestedOutput("Y"),)
