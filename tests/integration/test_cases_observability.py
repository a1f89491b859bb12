"""Collected bug reports about health and reflection (OBS-*), replayed on real servers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.test_stock_client import run
from tests.support.models import write_identity
from tests.support.stack import TRANSPORTS, Stack, running_stack

Status = health_pb2.HealthCheckResponse
OIP = "inference.GRPCInferenceService"


@pytest.mark.parametrize("door", ["node", "edge"])
def test_obs_06_check_and_watch(stack: Stack, door: str) -> None:
    with grpc.insecure_channel(stack.addresses.node_grpc if door == "node" else stack.addresses.edge_grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", OIP):
            assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status == Status.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="nope"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watched = health.Watch(health_pb2.HealthCheckRequest(service="nope"), timeout=10)
        assert next(watched).status == Status.SERVICE_UNKNOWN
        watched.cancel()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_obs_06_watch_says_not_serving_before_the_port_closes(free_port: Callable[[], int], tmp_path: Path, transport: str) -> None:
    write_identity(tmp_path, "m", {"X": ("FP32", [-1, 1])}, "max_batch_size = 8\n")
    with (
        running_stack(free_port, transport, tmp_path, {"TENSORGATE_DRAIN_NOTICE_S": "1"}) as stack,
        grpc.insecure_channel(stack.addresses.node_grpc) as channel,
    ):
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watched).status == Status.SERVING
        stack.program.send(signal.SIGTERM)
        assert next(watched).status == Status.NOT_SERVING
        watched.cancel()
        assert stack.program.wait() == 0


def test_obs_07_a_client_that_knows_nothing_but_reflection(stack: Stack) -> None:
    """On the node's own listener; outside, reflection is not offered (test_what_is_not_offered_is_unimplemented)."""
    learnt = run("reflection_client.py", stack.addresses.node_grpc)
    assert isinstance(learnt, dict)
    services = set(learnt.pop("services"))
    assert {OIP, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} <= services
    assert {"tensorgate.v1.InferenceService", "inference.ModelService", "trt.InferenceService"} <= services
    assert learnt == {"described": True, "health": Status.SERVING, "live": True, "values": [0.5, -2.0], "ours": []}
