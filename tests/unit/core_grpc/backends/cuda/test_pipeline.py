"""The pipeline over a fake CUDA that does nothing before it has to: order, values, memory, graphs, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from core_grpc.backends.cuda.device import CudaDevice
from core_grpc.backends.cuda.driver import CudaError
from core_grpc.backends.cuda.lane import Lane
from core_grpc.backends.cuda.pipeline import Pipeline
from core_grpc.backends.cuda.profiles import Profile, ShapeRange
from core_grpc.errors import BackendFailed, InvalidArgument, LimitExceeded
from core_grpc.types import Array
from tests.support.fake_cuda import FakeCuda, FakeCudaMisuseError
from tests.support.fake_executors import FakeExecutor, FakeNonZeroExecutor, FakeReshapeExecutor

ILLEGAL_ADDRESS, OUT_OF_MEMORY, INVALID_VALUE = 700, 2, 1


class Rig:
    """A pipeline over the fake, with one lane open on this thread."""

    def __init__(
        self, make: Callable[[FakeCuda], FakeExecutor] = FakeExecutor, graphs: int = 4, budget_bytes: int = 0, cuda: FakeCuda | None = None
    ) -> None:
        self.cuda = cuda or FakeCuda()
        self.device = CudaDevice(self.cuda, 0, budget_bytes)
        self.executors: list[FakeExecutor] = []

        def create(stream: int) -> FakeExecutor:
            assert stream in self.cuda.streams
            self.executors.append(make(self.cuda))
            return self.executors[-1]

        self.pipeline = Pipeline(self.device, create, graphs)
        self.lane: Lane = self.pipeline.open_lane()

    @property
    def executor(self) -> FakeExecutor:
        return self.executors[0]

    def close(self) -> None:
        self.lane.close()
        self.device.pool.close()
        self.cuda.calls.clear()


def batch(rows: int, columns: int = 8, seed: int = 0) -> Mapping[str, Array]:
    return {"X": np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)}


def expected(inputs: Mapping[str, Array]) -> Array:
    return inputs["X"] * 2 + 1


def test_eng_11_answers_are_right_and_arrays_of_their_own() -> None:
    rig = Rig()
    answers = [(inputs, rig.lane.execute(inputs)["Y"]) for inputs in (batch(rows, seed=rows) for rows in (1, 3, 8, 3, 3, 1))]
    for inputs, answer in answers:
        np.testing.assert_array_equal(answer, expected(inputs))
        assert answer.flags.c_contiguous
        assert answer.flags.owndata
    rig.close()
    assert rig.cuda.is_clean
    assert rig.executor.is_closed


def test_the_order_of_one_batch() -> None:
    rig = Rig(graphs=0)
    rig.cuda.calls.clear()
    rig.lane.execute(batch(2))
    steps = [call for call in rig.cuda.calls if call in {"copy_in", "record", "wait", "enqueue", "copy_out", "synchronize"}]
    assert steps == ["copy_in", "record", "wait", "enqueue", "record", "wait", "copy_out", "record", "synchronize"]


@pytest.mark.parametrize("forgotten", ["wait", "synchronize", "copy_in", "copy_out"])
def test_eng_10_a_step_that_is_left_out_shows(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the fake: it would be no test of the pipeline if it forgave."""
    rig = Rig(graphs=0)
    monkeypatch.setattr(rig.cuda, forgotten, lambda *_: None)
    inputs = batch(2)
    assert not np.array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))


def test_a_batch_is_copied_in_while_another_executes() -> None:
    rig = Rig(graphs=0)
    enqueued, copied = threading.Event(), threading.Event()
    wait = rig.cuda.synchronize

    def first_waits_for_the_second(event: int) -> None:
        if not enqueued.is_set():
            enqueued.set()
            assert copied.wait(10), "the second batch was not copied in while the first was under way"
        wait(event)

    rig.cuda.synchronize = first_waits_for_the_second  # type: ignore[method-assign]
    one, two = batch(2, seed=1), batch(2, seed=2)

    def second() -> Array:
        lane = rig.pipeline.open_lane()
        assert enqueued.wait(10)
        copy_in = rig.cuda.copy_in

        def tell(device: int, pinned: int, nbytes: int, stream: int) -> None:
            copy_in(device, pinned, nbytes, stream)
            copied.set()

        rig.cuda.copy_in = tell  # type: ignore[method-assign]
        answer = lane.execute(two)["Y"]
        lane.close()
        return answer

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second)
        np.testing.assert_array_equal(rig.lane.execute(one)["Y"], expected(one))
        np.testing.assert_array_equal(other.result(10), expected(two))


def test_eng_13_memory_settles() -> None:
    rig = Rig()
    random = np.random.default_rng(0)
    marks = []
    for turn in range(600):
        inputs = batch(int(random.integers(1, 9)), int(random.integers(4, 257)), seed=turn)
        np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))
        if turn % 200 == 199:
            marks.append((len(rig.cuda.device), len(rig.cuda.pinned), len(rig.cuda.graphs) <= 4, rig.device.pool.held_bytes))
    assert marks[1] == marks[2]


@pytest.mark.parametrize("graphs", [0, 4])
def test_eng_05_two_lanes_from_two_threads_never_mix(graphs: int) -> None:
    rig = Rig(graphs=graphs)

    def work(seed: int) -> int:
        lane = rig.pipeline.open_lane()
        wrong = 0
        for turn in range(150):
            inputs = batch(1 + (turn * 7 + seed) % 5, seed=seed * 1000 + turn)
            wrong += not np.array_equal(lane.execute(inputs)["Y"], expected(inputs))
        lane.close()
        return wrong

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [1, 2])) == [0, 0]
    rig.close()
    assert rig.cuda.is_clean


def test_inputs_that_lie_in_the_staging_are_not_copied_again() -> None:
    rig = Rig()
    memory = rig.lane.staging("X", 64)
    assert memory is not None
    rows = memory.view(np.float32).reshape(2, 8)
    rows[...] = 3
    memory_before = memory.ctypes.data
    np.testing.assert_array_equal(rig.lane.execute({"X": rows})["Y"], np.full((2, 8), 7, np.float32))
    again = rig.lane.staging("X", 64)
    assert again is not None
    assert again.ctypes.data == memory_before


def test_a_graph_is_launched_from_the_third_time_on() -> None:
    rig = Rig()
    for turn in range(5):
        inputs = batch(4, seed=turn)
        np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))
    assert rig.executor.enqueued == 2  # Run, recorded; the other three are launches.
    assert rig.cuda.calls.count("launch") == 4
    assert rig.lane.recorded_graphs == 1


def test_graphs_are_bounded_and_go_with_their_addresses() -> None:
    rig = Rig(graphs=2)
    for rows in (1, 2, 3):
        for _ in range(3):
            rig.lane.execute(batch(rows))
    assert rig.lane.recorded_graphs == 2
    assert len(rig.cuda.graphs) == 2
    # A larger batch moves the lane's memory: what was recorded with the old addresses must not be launched any more.
    rig.lane.execute(batch(4000))
    assert rig.lane.recorded_graphs == 0
    inputs = batch(3, seed=5)
    np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))
    rig.close()
    assert rig.cuda.is_clean


def test_an_engine_that_cannot_be_recorded_runs_without() -> None:
    rig = Rig()
    rig.cuda.refuses_capture = True
    for turn in range(4):
        inputs = batch(2, seed=turn)
        np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))
    assert rig.cuda.calls.count("begin_capture") == 1
    assert rig.lane.recorded_graphs == 0


def test_eng_07_profiles_are_chosen_and_refused() -> None:
    profiles = (Profile({"X": ShapeRange((1, 8), (1, 8), (2, 8))}), Profile({"X": ShapeRange((1, 8), (8, 8), (8, 8))}))
    rig = Rig(lambda cuda: FakeExecutor(cuda, profiles), graphs=0)
    for rows in (1, 8, 2):
        rig.lane.execute(batch(rows))
    assert rig.executor.used_profiles == [0, 1, 0]
    with pytest.raises(InvalidArgument, match=r"input 'X': wanted a shape from \[1,8\] to \[2,8\] or \[1,8\] to \[8,8\], got \[9,8\]"):
        rig.lane.execute(batch(9))
    inputs = batch(2, seed=9)
    np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))


def test_eng_08_outputs_whose_size_depends_on_the_data() -> None:
    rig = Rig(FakeNonZeroExecutor)
    for count in (0, 1, 1000, 20000, 1, 0):
        values = np.zeros((1, 20000), np.float32)
        values[0, :count] = np.arange(1, count + 1)
        np.testing.assert_array_equal(rig.lane.execute({"X": values})["Y"], np.arange(1, count + 1, dtype=np.float32))
    assert rig.lane.recorded_graphs == 0


def test_host_inputs_are_read_on_the_host() -> None:
    rig = Rig(FakeReshapeExecutor)
    for turn, shape in enumerate([(4, 4), (2, 8), (8, 2), (4, 4)]):
        inputs = {"X": batch(4, 4, seed=turn)["X"], "S": np.array(shape, np.int64)}
        # The fake computes in X's layout: the values are those, in the shape that S says.
        np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs).reshape(shape))
    assert rig.lane.staging("S", 16) is None


def test_batches_of_no_elements() -> None:
    rig = Rig(FakeNonZeroExecutor)
    assert rig.lane.execute({"X": np.zeros((0, 8), np.float32)})["Y"].shape == (0,)


def test_the_pool_s_budget_refuses_and_recovers() -> None:
    rig = Rig(budget_bytes=64 << 10)
    with pytest.raises(LimitExceeded, match="the GPU memory pool holds 65536 bytes: wanted"):
        rig.lane.execute(batch(2048))
    inputs = batch(8, seed=1)
    np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))


def test_eng_14_a_gpu_without_room_refuses_and_recovers() -> None:
    rig = Rig(cuda=FakeCuda(device_bytes=64 << 10))
    with pytest.raises(LimitExceeded, match="the GPU is out of memory: wanted"):
        rig.lane.execute(batch(4096))
    inputs = batch(8, seed=1)
    np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))


@pytest.mark.parametrize("call", ["copy_in", "run", "copy_out", "synchronize"])
def test_a_failure_that_passes_is_the_batch_s_alone(call: str) -> None:
    rig = Rig()
    rig.cuda.fail_next(call, INVALID_VALUE)
    with pytest.raises(BackendFailed, match=rf"the GPU failed: {call} answered cudaError1 \(1\)"):
        rig.lane.execute(batch(2))
    assert rig.device.fault == ""
    assert not any(stream.pending for stream in rig.cuda.streams.values()), "the next batch would be written under what is still under way"
    inputs = batch(2, seed=1)
    np.testing.assert_array_equal(rig.lane.execute(inputs)["Y"], expected(inputs))


@pytest.mark.parametrize("call", ["copy_in", "synchronize", "run"])
def test_a_sticky_error_fails_the_gpu_for_everybody(call: str) -> None:
    rig = Rig()
    rig.lane.execute(batch(2))
    told: list[str] = []
    rig.device.watch(told.append)
    rig.cuda.fail_next(call, ILLEGAL_ADDRESS)
    with pytest.raises(CudaError):
        rig.lane.execute(batch(3))
    assert told == [rig.device.fault]
    assert "GPU 0 has failed with cudaError700 (700): this node must be restarted to use it again" in told[0]
    calls = len(rig.cuda.calls)
    with pytest.raises(BackendFailed, match="must be restarted"):
        rig.lane.execute(batch(2))
    assert len(rig.cuda.calls) == calls, "a GPU that has failed is not asked again"
    with pytest.raises(BackendFailed, match="must be restarted"):
        Pipeline(rig.device, lambda _stream: FakeExecutor(rig.cuda))
    late: list[str] = []
    rig.device.watch(late.append)
    assert late == told
    rig.lane.close()
    assert rig.executor.is_closed


def test_an_engine_s_own_exception_over_a_sticky_error_is_found() -> None:
    class FailsUnspecifically(FakeExecutor):
        def set_addresses(self, addresses: Mapping[str, int]) -> None:
            super().set_addresses(addresses)
            self.cuda.fail_next("finish", ILLEGAL_ADDRESS)
            raise RuntimeError("CUDA failure somewhere inside")

    rig = Rig(FailsUnspecifically)
    with pytest.raises(RuntimeError, match="somewhere inside"):
        rig.lane.execute(batch(1))
    assert "must be restarted" in rig.device.fault


def test_an_executor_that_cannot_be_made_leaves_nothing() -> None:
    cuda = FakeCuda()
    with pytest.raises(ValueError, match="no engine"):
        Pipeline(CudaDevice(cuda), lambda _stream: (_ for _ in ()).throw(ValueError("no engine")))
    assert cuda.is_clean


def test_a_thread_that_did_not_open_the_lane_is_refused_by_the_fake() -> None:
    rig = Rig()
    with ThreadPoolExecutor(1) as pool, pytest.raises(FakeCudaMisuseError, match="did not say which GPU"):
        pool.submit(rig.lane.execute, batch(1)).result()
