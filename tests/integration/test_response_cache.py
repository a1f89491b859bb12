"""An answer that one door kept is given at every other one, in that door's form, and counted."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc
from tests.support.doors import DOORS
from tests.support.stack import Stack
from tests.support.vectors import Vector, VectorTensor


def counted(stack: Stack) -> dict[str, Any]:
    (found,) = stack.get("/v2/models/cached/stats").json()["model_stats"]
    return dict(found)


@pytest.mark.parametrize("value", [0.5, -3.0])
def test_all_doors_share_one_execution(stack: Stack, value: float) -> None:
    vector = Vector("cached", "cached", [VectorTensor("X", "FP32", [1, 2], [value, 1.0])])
    before = counted(stack)
    for name, door in DOORS.items():
        answer = door(stack.addresses, vector)
        assert answer.status == "OK", name
        assert answer.outputs["Y"][2].tolist() == [value, 1.0], name
    after = counted(stack)

    def more(key: str) -> int:
        return int(after["inference_stats"][key]["count"] - before["inference_stats"][key]["count"])

    assert {key: more(key) for key in ("cache_hit", "cache_miss", "success", "compute_infer")} == {
        "cache_hit": len(DOORS) - 1,
        "cache_miss": 1,
        "success": len(DOORS),
        "compute_infer": 1,
    }
    assert after["execution_count"] - before["execution_count"] == 1
    with grpc.insecure_channel(stack.addresses.node_grpc) as channel:
        stub = grpc_service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (same,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="cached"), timeout=10).model_stats
        assert same.inference_stats.cache_hit.count == after["inference_stats"]["cache_hit"]["count"]
        assert stub.ModelConfig(pb.ModelConfigRequest(name="cached"), timeout=10).config.response_cache.enable
