"""Instance groups on the wire, against Triton's message."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from core_grpc.errors import ModelLoadFailed
from core_grpc.models.instance_groups import InstanceGroup
from core_grpc.rpc.instance_group_codec import decode_instance_groups, encode_instance_group
from core_grpc.rpc.override_codec import decode_override
from core_grpc.scheduler.resources import ResourceNeed
from protos.inference import model_config_pb2 as pb

GROUPS = (
    InstanceGroup("a", 2, "cpu"),
    InstanceGroup("b", 1, "gpu", (0, 3), (), (ResourceNeed("R1", 4), ResourceNeed("R2", 1, is_global=True)), 3),
    InstanceGroup("c", 1, "auto", priority=2),
)


def test_there_and_back() -> None:
    assert decode_instance_groups([encode_instance_group(group) for group in GROUPS]) == GROUPS
    assert decode_instance_groups([]) is None


def test_as_triton_writes_it() -> None:
    assert json_format.MessageToDict(encode_instance_group(GROUPS[0])) == {"name": "a", "kind": "KIND_CPU", "count": 2}
    assert json_format.MessageToDict(encode_instance_group(GROUPS[1])) == {
        "name": "b",
        "kind": "KIND_GPU",
        "count": 1,
        "gpus": [0, 3],
        "rateLimiter": {"resources": [{"name": "R1", "count": 4}, {"name": "R2", "global": True, "count": 1}], "priority": 3},
    }


def test_a_load_request() -> None:
    config = '{"instance_group": [{"count": 2, "kind": "KIND_CPU"}, {"kind": "KIND_MODEL"}]}'
    override = decode_override("m", {"config": config})
    assert override is not None
    assert override.instances == (InstanceGroup(count=2, kind="cpu"), InstanceGroup(count=1, kind="auto"))
    without = decode_override("m", {"config": "{}"})
    assert without is not None
    assert without.instances is None
    with pytest.raises(ModelLoadFailed, match="failed to load 'm', config: instance_group: passive is not supported"):
        decode_override("m", {"config": '{"instance_group": [{"passive": true}]}'})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.ModelInstanceGroup(count=-1), "wanted count and gpus of 0 or more, got -1"),
        (pb.ModelInstanceGroup(gpus=[0, -2]), "wanted count and gpus of 0 or more, got -2"),
        (pb.ModelInstanceGroup(profile=["0"]), "profile is not supported"),
        (pb.ModelInstanceGroup(host_policy="numa0"), "host_policy is not supported"),
        (pb.ModelInstanceGroup(secondary_devices=[pb.ModelInstanceGroup.SecondaryDevice()]), "secondary_devices is not supported"),
        (
            pb.ModelInstanceGroup(rate_limiter=pb.ModelRateLimiter(resources=[pb.ModelRateLimiter.Resource(name="R1")])),
            "wanted resources with name and count, got 'R1', 0",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(message: pb.ModelInstanceGroup, reason: str) -> None:
    with pytest.raises(ModelLoadFailed, match=reason):
        decode_instance_groups([message])
