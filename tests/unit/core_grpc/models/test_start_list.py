"""The setting models.load: what it names is loaded at start, the rest on request; and what it may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_grpc.errors import NotFound
from core_grpc.models.start_list import StartList, start_list
from core_grpc.settings import ModelsSettings, SettingsError
from tests.support.models import write_identity
from tests.support.serving import serving


@pytest.mark.parametrize(("load", "names"), [("*", None), ("", ()), ("a", ("a",)), (" a , b c,a,", ("a", "b c"))])
def test_what_it_names(load: str, names: tuple[str, ...] | None) -> None:
    assert start_list(ModelsSettings(load=load)) == StartList(names)


@pytest.mark.parametrize("settings", [ModelsSettings(load="a", control="none"), ModelsSettings(load="", control="poll")])
def test_names_take_control_explicit(settings: ModelsSettings) -> None:
    with pytest.raises(SettingsError, match=r"TENSORGATE_MODELS_LOAD: wanted \* with models.control = (none|poll), got"):
        start_list(settings)


def test_all_and_names_do_not_go_together() -> None:
    with pytest.raises(SettingsError, match=r"wanted \* alone, or names with commas between"):
        start_list(ModelsSettings(load="*,a"))


async def test_the_others_are_loaded_on_request(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_identity(tmp_path, name, {"X": ("FP32", [-1, 1])})
    async with serving(tmp_path, ModelsSettings(load="a,gone")) as served:
        states = {entry.name: (entry.state.value, entry.reason) for entry in served.entries()}
        assert states == {
            "a": ("READY", ""),
            "b": ("UNAVAILABLE", "not loaded"),
            "gone": ("UNAVAILABLE", "the setting models.load names it, and the repository has no such model"),
        }
        with pytest.raises(NotFound, match="'b' has no available versions: it is not loaded"):
            served.find("b")
        await served.control.load("b")
        assert served.find("b").spec.version == "1"
