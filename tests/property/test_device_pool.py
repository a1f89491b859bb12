"""The pool of a GPU's memory against a list of what is held: the promises of ``pool.py`` hold after each step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.backends.cuda.driver import CudaError
from core_grpc.backends.cuda.pool import SMALLEST_BLOCK_BYTES, Block, DevicePool, block_bytes
from core_grpc.errors import LimitExceeded

KIB = 1024


class PoolMachine(RuleBasedStateMachine):
    """Owners that take and give back, on a GPU with little memory."""

    @initialize(budget=st.sampled_from([0, 8 * KIB, 64 * KIB]), there=st.sampled_from([16 * KIB, 1 << 20]))
    def begin(self, budget: int, there: int) -> None:
        self.budget, self.there = budget, there
        self.allocated: dict[int, int] = {}
        self.held: list[Block] = []
        self.next_address = 1
        self.pool = DevicePool(self.allocate, self.free, budget)

    def allocate(self, nbytes: int) -> int:
        if sum(self.allocated.values()) + nbytes > self.there:
            raise CudaError("cudaMalloc", 2, "cudaErrorMemoryAllocation")
        self.next_address += 1
        self.allocated[self.next_address] = nbytes
        return self.next_address

    def free(self, address: int) -> None:
        del self.allocated[address]

    @rule(nbytes=st.integers(0, 40 * KIB))
    def take(self, nbytes: int) -> None:
        limit = min(self.budget or self.there, self.there)
        held = sum(block.nbytes for block in self.held)
        if held + block_bytes(nbytes) > limit:
            with pytest.raises(LimitExceeded):
                self.pool.take(nbytes)
        else:
            block = self.pool.take(nbytes)
            assert block.nbytes >= nbytes
            assert block.address not in {other.address for other in self.held}
            self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.pool.give_back(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        assert self.pool.kept_bytes == 0

    @invariant()
    def counts_are_true(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.held_bytes == sum(block.nbytes for block in self.held)
        assert self.pool.held_bytes + self.pool.kept_bytes == sum(self.allocated.values())
        assert not self.budget or sum(self.allocated.values()) <= self.budget

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.close()
            for block in self.held:
                self.pool.give_back(block)
            assert not self.allocated


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


@given(st.integers(0, 1 << 40))
def test_a_third_of_a_block_is_unused_at_most(nbytes: int) -> None:
    size = block_bytes(nbytes)
    assert size >= nbytes
    assert size == SMALLEST_BLOCK_BYTES or (size - nbytes) * 3 <= size
