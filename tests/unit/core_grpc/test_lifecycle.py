"""The tables of states, and that nothing leaves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from core_grpc.lifecycle import MODEL_STEPS, SERVER_STEPS, Lifecycle, ModelState, ServerState

TABLES: list[Mapping[Any, frozenset[Any]]] = [SERVER_STEPS, MODEL_STEPS]
PAIRS = [(table, a, b) for table in TABLES for a, b in product(table, table)]


@pytest.mark.parametrize(("table", "states"), [(SERVER_STEPS, ServerState), (MODEL_STEPS, ModelState)])
def test_every_state_has_a_row(table: Mapping[StrEnum, frozenset[StrEnum]], states: type[StrEnum]) -> None:
    assert set(table) == set(states)


@pytest.mark.parametrize(("table", "a", "b"), PAIRS, ids=lambda value: str(value) if isinstance(value, StrEnum) else "")
def test_a_step_is_taken_if_and_only_if_it_is_in_the_table(table: Mapping[Any, frozenset[Any]], a: StrEnum, b: StrEnum) -> None:
    lifecycle = Lifecycle(table, a)
    if b in table[a]:
        lifecycle.to(b)
        assert lifecycle.state is b
    else:
        with pytest.raises(RuntimeError, match=f"no step from {a} to {b}"):
            lifecycle.to(b)
        assert lifecycle.state is a


def test_a_server_lives_once() -> None:
    lifecycle = Lifecycle(SERVER_STEPS, ServerState.STARTING)
    for state in (ServerState.SERVING, ServerState.DRAINING, ServerState.STOPPED):
        lifecycle.to(state)
    assert not SERVER_STEPS[lifecycle.state]


def test_a_server_may_be_stopped_while_it_starts() -> None:
    Lifecycle(SERVER_STEPS, ServerState.STARTING).to(ServerState.DRAINING)


def test_an_unavailable_model_can_be_loaded_again() -> None:
    lifecycle = Lifecycle(MODEL_STEPS, ModelState.LOADING)
    lifecycle.to(ModelState.UNAVAILABLE, "model.onnx: not an ONNX model")
    assert lifecycle.reason == "model.onnx: not an ONNX model"
    lifecycle.to(ModelState.LOADING)
    lifecycle.to(ModelState.READY)
    assert lifecycle.reason == ""


def test_watchers_are_told_after_each_step_until_they_leave() -> None:
    lifecycle = Lifecycle(MODEL_STEPS, ModelState.LOADING)
    seen: list[tuple[ModelState, ModelState]] = []
    leave = lifecycle.watch(lambda state: seen.append((state, lifecycle.state)))
    lifecycle.to(ModelState.READY)
    leave()
    lifecycle.to(ModelState.UNLOADING)
    assert seen == [(ModelState.READY, ModelState.READY)]


def test_a_watcher_may_leave_while_it_is_told() -> None:
    lifecycle = Lifecycle(MODEL_STEPS, ModelState.LOADING)
    seen: list[str] = []
    leaves: list[Callable[[], None]] = []

    def first(_state: ModelState) -> None:
        seen.append("first")
        leaves[0]()

    leaves.append(lifecycle.watch(first))
    lifecycle.watch(lambda _state: seen.append("second"))
    lifecycle.to(ModelState.READY)
    lifecycle.to(ModelState.UNLOADING)
    assert seen == ["first", "second", "second"]


def test_an_illegal_step_tells_nobody() -> None:
    lifecycle = Lifecycle(SERVER_STEPS, ServerState.STOPPED)
    seen: list[ServerState] = []
    lifecycle.watch(seen.append)
    with pytest.raises(RuntimeError):
        lifecycle.to(ServerState.SERVING)
    assert not seen


def test_the_repr_is_a_status_line() -> None:
    lifecycle = Lifecycle(MODEL_STEPS, ModelState.LOADING)
    assert repr(lifecycle) == "<LOADING>"
    lifecycle.to(ModelState.UNAVAILABLE, "out of memory")
    assert repr(lifecycle) == "<UNAVAILABLE: out of memory>"
