"""The response cache against a plain list of what was put, and digests against the content that they stand for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core_grpc.models.request_digest import request_digest
from core_grpc.scheduler.cache import LruCache
from core_grpc.types import Array, Datatype, ParameterValue

generations = st.integers(1, 3)
digests = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
Key = tuple[int, bytes]


class CacheMachine(RuleBasedStateMachine):
    """Puts, gets and forgotten generations."""

    @initialize(max_bytes=st.integers(0, 30))
    def begin(self, max_bytes: int) -> None:
        self.cache: LruCache[tuple[Key, int]] = LruCache(max_bytes)
        self.max_bytes = max_bytes
        self.kept: list[tuple[Key, tuple[Key, int], int]] = []
        """Key, value and cost, the one that was not asked for the longest first."""
        self.puts = 0

    @rule(generation=generations, digest=digests, nbytes=st.integers(1, 12))
    def put(self, generation: int, digest: bytes, nbytes: int) -> None:
        key = (generation, digest)
        self.puts += 1
        self.kept = [entry for entry in self.kept if entry[0] != key]
        fits = nbytes <= self.max_bytes
        assert self.cache.put(generation, digest, (key, self.puts), nbytes) is fits
        if fits:
            self.kept.append((key, (key, self.puts), nbytes))
            while sum(cost for _, _, cost in self.kept) > self.max_bytes:
                del self.kept[0]

    @rule(generation=generations, digest=digests)
    def get(self, generation: int, digest: bytes) -> None:
        key = (generation, digest)
        found = [entry for entry in self.kept if entry[0] == key]
        assert self.cache.get(generation, digest) == (found[0][1] if found else None)
        self.kept = [entry for entry in self.kept if entry[0] != key] + found

    @rule(generation=generations)
    def forget(self, generation: int) -> None:
        self.cache.forget(generation)
        self.kept = [entry for entry in self.kept if entry[0][0] != generation]

    @invariant()
    def holds_its_promises(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert self.cache.nbytes == sum(cost for _, _, cost in self.kept) <= self.max_bytes
        assert len(self.cache) == len(self.kept)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for (generation, digest), value, _ in self.kept:
                assert self.cache.get(generation, digest) == value


TestCache = CacheMachine.TestCase


numbers = st.one_of(
    [
        arrays.arrays(datatype.dtype, arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3), elements=st.integers(0, 1))
        for datatype in (Datatype.FP32, Datatype.INT32, Datatype.UINT8, Datatype.BOOL)
    ]
)
texts = arrays.arrays(object, arrays.array_shapes(max_dims=2, min_side=0, max_side=3), elements=st.binary(max_size=2))
requests = st.tuples(
    st.dictionaries(st.sampled_from("XYZ"), st.one_of(numbers, texts), max_size=3),
    st.dictionaries(st.sampled_from("pq"), st.one_of(st.booleans(), st.integers(0, 1), st.sampled_from([0.0, 1.0, "", "1"])), max_size=2),
)


def content(inputs: Mapping[str, Array], parameters: Mapping[str, ParameterValue]) -> object:
    """What the digest stands for, as a value that compares."""
    tensors = {name: (array.dtype, array.shape, array.tolist()) for name, array in inputs.items()}
    return tensors, {name: (type(value), value) for name, value in parameters.items()}


@given(requests, requests)
def test_digests_are_equal_where_the_content_is_and_nowhere_else(
    one: tuple[dict[str, Array], dict[str, ParameterValue]], other: tuple[dict[str, Array], dict[str, ParameterValue]]
) -> None:
    is_same = content(*one) == content(*other)
    assert (request_digest(b"s", *one) == request_digest(b"s", *other)) is is_same
    copied = {name: array.copy() for name, array in reversed(one[0].items())}
    assert request_digest(b"s", copied, dict(reversed(one[1].items()))) == request_digest(b"s", *one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"X": np.array([b"ab", b"c"], object)}, {"X": np.array([b"a", b"bc"], object)}),
        ({"X": np.array([b"", b"ab"], object)}, {"X": np.array([b"ab", b""], object)}),
        ({"X": np.zeros((1, 4), np.float32)}, {"X": np.zeros((4, 1), np.float32)}),
        ({"X": np.zeros(4, np.int32)}, {"X": np.zeros(4, np.float32)}),
        ({"X": np.zeros(2, Datatype.BF16.dtype)}, {"X": np.zeros(2, np.float16)}),
        ({"X": np.zeros(4, np.int32)}, {"Y": np.zeros(4, np.int32)}),
        ({"X": np.array([0, 1]), "Y": np.array([2, 3])}, {"X": np.array([2, 3]), "Y": np.array([0, 1])}),
    ],
)
def test_what_looks_alike_has_different_digests(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    assert request_digest(b"s", one, {}) != request_digest(b"s", other, {})
    assert request_digest(b"s", one, {}) != request_digest(b"t", one, {})
