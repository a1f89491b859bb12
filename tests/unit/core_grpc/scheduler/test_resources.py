"""The rate limiter: examples. Its invariants are in tests/property/test_resources.py."""

from __future__ import annotations

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.scheduler.resources import GLOBAL, ResourceLimiter, ResourceNeed, totals_from_text
from core_grpc.settings import SettingsError


def test_without_a_configured_total_there_is_as_much_as_one_needs() -> None:
    limiter = ResourceLimiter()
    small = limiter.join("cpu", [ResourceNeed("R")])
    assert limiter.free(("cpu", "R")) == 1
    large = limiter.join("cpu", [ResourceNeed("R", 3)])
    assert limiter.free(("cpu", "R")) == 3
    limiter.join("gpu:0", [ResourceNeed("R", 2)])
    assert limiter.free(("gpu:0", "R")) == 2
    assert [limiter.ask(small) for _ in range(4)] == [True, True, True, False]
    limiter.leave(large)
    assert repr(limiter) == "<ResourceLimiter: cpu/R 3 of 1, gpu:0/R 0 of 2, 1 in line>"


def test_a_global_resource_is_one_for_all_devices() -> None:
    limiter = ResourceLimiter()
    on_cpu, on_gpu = (limiter.join(device, [ResourceNeed("licence", 1, is_global=True)]) for device in ("cpu", "gpu:0"))
    assert limiter.ask(on_cpu)
    assert not limiter.ask(on_gpu)
    limiter.give_back(on_cpu)
    assert limiter.next() is on_gpu
    assert limiter.free((GLOBAL, "licence")) == 0


def test_small_needs_do_not_starve_a_large_one() -> None:
    limiter = ResourceLimiter({("", "R"): 4})
    small, large = limiter.join("cpu", [ResourceNeed("R", 2)]), limiter.join("cpu", [ResourceNeed("R", 4)])
    assert limiter.ask(small)
    assert not limiter.ask(large)
    assert not limiter.ask(small), "two are free, and kept for who came before"
    limiter.give_back(small)
    assert limiter.next() is large
    assert limiter.next() is None
    limiter.give_back(large)
    assert limiter.next() is small


def test_who_needs_something_else_is_not_held_up() -> None:
    limiter = ResourceLimiter()
    first, second = limiter.join("cpu", [ResourceNeed("A"), ResourceNeed("B")]), limiter.join("cpu", [ResourceNeed("A"), ResourceNeed("B")])
    other = limiter.join("cpu", [ResourceNeed("C")])
    assert limiter.ask(first)
    assert not limiter.ask(second)
    assert limiter.ask(other)


def test_who_was_idle_has_no_turns_to_make_up_for() -> None:
    limiter = ResourceLimiter()
    busy, idle = limiter.join("cpu", [ResourceNeed("R")]), limiter.join("cpu", [ResourceNeed("R")])
    for _ in range(10):
        assert limiter.ask(busy)
        limiter.give_back(busy)
    assert limiter.ask(busy)
    order = []
    waiting = {busy, idle}
    running = busy
    for _ in range(4):
        for claimant in waiting - {running}:
            limiter.ask(claimant)
        limiter.give_back(running)
        limiter.ask(running)
        running = limiter.next() or running
        order.append(running)
    assert order.count(idle) == 2


def test_what_cannot_be_had_keeps_a_model_from_being_served() -> None:
    limiter = ResourceLimiter(totals_from_text("R:2, S:1:global, T:5:0"))
    with pytest.raises(ModelLoadFailed, match=r"resources: 'R' count: wanted at most 2, all that TENSORGATE_MODELS_RESOURCES gives, got 3"):
        limiter.join("cpu", [ResourceNeed("R", 3)])
    with pytest.raises(ModelLoadFailed, match="resources: 'R' is global here and for each device in another model or in TENSORGATE"):
        limiter.join("cpu", [ResourceNeed("R", 1, is_global=True)])
    with pytest.raises(ModelLoadFailed, match="resources: 'S' is for each device here and global in another model"):
        limiter.join("cpu", [ResourceNeed("S")])
    limiter.join("cpu", [ResourceNeed("T", 7)])
    with pytest.raises(ModelLoadFailed, match="'T' count: wanted at most 5"):
        limiter.join("gpu:0", [ResourceNeed("T", 7)])
    limiter.join("cpu", [ResourceNeed("U")])
    with pytest.raises(ModelLoadFailed, match="'U' is global here and for each device"):
        limiter.join("cpu", [ResourceNeed("U", is_global=True)])


def test_the_setting() -> None:
    text = " R1:10, R2:4:0 ,R3:8:global,R4:1:gpu:12,R5:2:cpu,"
    assert totals_from_text(text) == {
        ("", "R1"): 10,
        ("gpu:0", "R2"): 4,
        (GLOBAL, "R3"): 8,
        ("gpu:12", "R4"): 1,
        ("cpu", "R5"): 2,
    }
    assert totals_from_text("") == {}


@pytest.mark.parametrize("text", ["R1", "R1:", ":3", "R1:0", "R1:-1", "R1:x", "R1:1:tpu", "R1:1:gpu:", "R1:1:0:0", "R1:9999999"])
def test_the_setting_is_refused_with_what_was_wanted(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^TENSORGATE_MODELS_RESOURCES: wanted NAME:COUNT or NAME:COUNT:DEVICE .*, got '"):
        totals_from_text(f"ok:1,{text}")
