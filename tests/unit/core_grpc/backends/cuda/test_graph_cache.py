"""Which CUDA graphs are kept."""

from __future__ import annotations

from core_grpc.backends.cuda.graph_cache import GraphCache


def test_the_least_recently_used_goes() -> None:
    gone: list[int] = []
    cache: GraphCache[str, int] = GraphCache(2, gone.append)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert gone == [2]
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)
    cache.clear()
    assert sorted(gone) == [1, 2, 3]
    assert len(cache) == 0


def test_a_key_is_worth_recording_when_it_comes_again() -> None:
    cache: GraphCache[str, int] = GraphCache(2, lambda _graph: None)
    assert [cache.is_worth_recording("a") for _ in range(3)] == [False, True, True]
    cache.clear()
    assert not cache.is_worth_recording("a")


def test_keys_that_never_come_again_are_forgotten() -> None:
    cache: GraphCache[int, int] = GraphCache(2, lambda _graph: None)
    assert not cache.is_worth_recording(-1)
    for key in range(8):
        cache.is_worth_recording(key)
    assert not cache.is_worth_recording(-1)


def test_a_cache_of_none_records_nothing() -> None:
    cache: GraphCache[str, int] = GraphCache(0, lambda _graph: None)
    assert [cache.is_worth_recording("a") for _ in range(2)] == [False, False]
