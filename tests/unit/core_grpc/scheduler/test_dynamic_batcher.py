"""What the state machine cannot see: costs, and what is kept alive."""

from __future__ import annotations

import gc
import math
import time
import weakref

from core_grpc.scheduler.dynamic_batcher import BatchingLimits, DynamicBatcher, Pending

NO_DELAY = BatchingLimits(max_batch_size=8, max_queue_delay_s=0.0, max_queue_rows=1 << 30, max_queue_bytes=1 << 40)


class Watched(Pending):
    __slots__ = ("__weakref__",)


def test_full_group_does_not_wait_for_the_delay_of_another() -> None:
    batcher: DynamicBatcher[Pending] = DynamicBatcher(BatchingLimits(2, 10.0, 100, 100))
    lonely, first, second = (Pending(1, 1, group, math.inf, 0.0) for group in ("a", "b", "b"))
    batcher.offer(lonely)
    batcher.offer(first)
    assert batcher.take(1.0) is None
    batcher.offer(second)
    assert batcher.next_wakeup() == -math.inf
    assert batcher.take(1.0) == [first, second]
    assert batcher.take(9.9) is None
    assert batcher.take(10.0) == [lonely]


def test_requests_that_left_are_not_kept_alive() -> None:
    batcher: DynamicBatcher[Watched] = DynamicBatcher(NO_DELAY)
    for leave in (lambda _: batcher.take(0.0), batcher.withdraw, lambda _: batcher.expire(math.inf), lambda _: batcher.clear()):
        request = Watched(1, 1, None, 1e9, 0.0)
        gone = weakref.ref(request)
        batcher.offer(request)
        leave(request)
        del request
        gc.collect()
        assert gone() is None


def test_tickets_of_requests_that_left_do_not_pile_up() -> None:
    batcher: DynamicBatcher[Pending] = DynamicBatcher(NO_DELAY)
    batcher.offer(Pending(1, 1, None, 2e9, 0.0))
    for _ in range(5000):
        request = Pending(1, 1, None, 1e9, 0.0)
        batcher.offer(request)
        batcher.withdraw(request)
    assert len(batcher._deadlines) < 200
    assert sum(map(len, batcher._groups[None].lanes)) < 200
    assert len(batcher.take(0.0) or []) == 1
    assert not batcher._groups


def test_cost_of_a_request_does_not_grow_with_the_queue() -> None:
    def cost(waiting: int) -> float:
        batcher: DynamicBatcher[Pending] = DynamicBatcher(NO_DELAY)
        for i in range(waiting):
            batcher.offer(Pending(1, 1, i % (waiting // 10), 1e9 + i, 0.0))
        began = time.thread_time()
        for i in range(2000):
            late = Pending(1, 1, "late", 1e9, 0.0)
            batcher.offer(late)
            batcher.withdraw(late)
            batcher.offer(Pending(1, 1, i, 1e9, 0.0))
            batcher.expire(0.0)
            batcher.take(0.0)
        return time.thread_time() - began

    assert cost(20_000) < 20 * min(cost(100) for _ in range(3)), "two hundred times the queue"
