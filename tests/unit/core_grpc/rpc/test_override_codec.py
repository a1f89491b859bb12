"""What a load request's ``config`` says about versions."""

from __future__ import annotations

import pytest

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.version_policy import ALL, VersionPolicy, specific
from core_grpc.rpc.override_codec import decode_override


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("{}", None),
        ('{"version_policy": {"all": {}}}', ALL),
        ('{"version_policy": {"latest": {"num_versions": 3}}}', VersionPolicy(latest=3)),
        ('{"version_policy": {"specific": {"versions": [3, 1]}}}', specific(["3", "1"])),
    ],
)
def test_version_policies(policy: str, wanted: VersionPolicy | None) -> None:
    override = decode_override("m", {"config": policy})
    assert override is not None
    assert override.versions == wanted


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ('{"latest": {}}', r"version_policy.latest.num_versions: wanted 1 to 1000, got 0"),
        ('{"specific": {}}', r"version_policy.specific.versions: wanted one version or more"),
        ('{"specific": {"versions": [-1]}}', r"version_policy.specific.versions: .* none of them negative"),
    ],
)
def test_policies_that_serve_nothing(policy: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed, match=message):
        decode_override("m", {"config": f'{{"version_policy": {policy}}}'})
