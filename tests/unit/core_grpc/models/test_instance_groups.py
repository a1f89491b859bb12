"""``[instances]`` of model.toml."""

from __future__ import annotations

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.models.model_config import model_config_from_text
from core_grpc.scheduler.resources import ResourceNeed


def groups(text: str) -> tuple[InstanceGroup, ...]:
    return model_config_from_text(text).instances


def test_one_group() -> None:
    assert groups("") == (InstanceGroup(),)
    assert groups("[instances]\ncount = 3") == (InstanceGroup(count=3),)
    assert groups('[instances]\ncount = "auto"') == (InstanceGroup(count=None),)
    text = """
        [instances]
        name = "both"
        kind = "gpu"
        devices = [0, 1]
        cores = "0-2,5"
        priority = 2
        resources = [{ name = "R1", count = 4 }, { name = "licence", global = true }]
    """
    needs = (ResourceNeed("R1", 4), ResourceNeed("licence", 1, is_global=True))
    assert groups(text) == (InstanceGroup("both", 1, "gpu", (0, 1), (0, 1, 2, 5), needs, 2),)


def test_several_groups() -> None:
    text = '[[instances]]\ncount = 2\nkind = "cpu"\ncores = [3, 1]\n[[instances]]\nkind = "gpu"\ndevices = [1]'
    assert groups(text) == (InstanceGroup(count=2, kind="cpu", cores=(3, 1)), InstanceGroup(kind="gpu", devices=(1,)))


def test_fair_share() -> None:
    assert model_config_from_text("").share_weight is None
    assert model_config_from_text("[fair_share]").share_weight == 1
    assert model_config_from_text("[fair_share]\nweight = 2.5").share_weight == 2.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("instances = 3", r"model.toml: \[instances\]: wanted a table, got 3"),
        ("instances = []", r"model.toml instances: wanted a table, or at least one \[\[instances\]\], got \[\]"),
        ("[instances]\ncount = 0", r"model.toml: \[instances\] count: wanted a whole number from 1 to 1024, got 0"),
        ("[[instances]]\n[[instances]]\ncount = 'all'", r"model.toml: \[\[instances\]\] 1 count: wanted a whole number .*, got 'all'"),
        ("[instances]\nkind = 'tpu'", r"\[instances\] kind: wanted one of auto, cpu, gpu, got 'tpu'"),
        (
            "[instances]\ndevices = [0, 0]",
            r"\[instances\] devices: wanted a list of GPU numbers, .*, each once, got \[0, 0\]",
        ),
        ("[instances]\ndevices = [-1]", r"\[instances\] devices: wanted a list of GPU numbers"),
        ("[instances]\ndevices = 0", r"\[instances\] devices: wanted a list of GPU numbers"),
        ("[instances]\ncores = '3-1'", r"\[instances\] cores: wanted a list of processor numbers .*, got '3-1'"),
        ("[instances]\ncores = ''", r"\[instances\] cores: wanted a list of processor numbers"),
        ("[instances]\ncores = [true]", r"\[instances\] cores: wanted a list of processor numbers"),
        ("[instances]\npriority = 0", r"\[instances\] priority: wanted a whole number from 1 to 1024, got 0"),
        ("[instances]\nthreads = 0", r"\[instances\] threads: no such key; it has cores, count, devices, kind, name, priority, resources"),
        ("[instances]\nresources = 'R1'", r"\[instances\] resources: wanted a list of tables such as .*, got 'R1'"),
        ("[instances]\nresources = ['R1']", r"\[instances\] resources: wanted a table, got 'R1'"),
        ("[instances]\nresources = [{}]", r"\[instances\] resources name: wanted letters, digits, .*, got ''"),
        ("[instances]\nresources = [{ name = 'a', count = 0 }]", r"\[instances\] resources count: wanted a whole number from 1 .*, got 0"),
        ("[instances]\nresources = [{ name = 'a', global = 1 }]", r"\[instances\] resources global: wanted true or false, got 1"),
        ("[instances]\nresources = [{ name = 'a' }, { name = 'a' }]", r"resources: wanted each name once, got \['a', 'a'\]"),
        ("[fair_share]\nweight = 0", r"\[fair_share\] weight: wanted a number from 0.01 to 1000, got 0"),
        ("[fair_share]\nslots = 0", r"\[fair_share\] slots: no such key; it has weight"),
    ],
)
def test_what_is_wrong_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(ModelLoadFailed, match=reason):
        groups(text)
