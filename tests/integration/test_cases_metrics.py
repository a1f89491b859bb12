"""Collected bug reports about metrics (OBS-*), replayed on real servers, through every kind of door."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from tests.support.metrics import Values, increase, metrics_url, scrape, settled
from tests.support.stack import Stack

OIP = "/inference.GRPCInferenceService/ModelInfer"
REST = "/tensorgate.rest.v1.Rest/ModelInfer"
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def request(model: str, first: float = 0.5, rows: int = 1, **parameters: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="X", datatype="FP32", shape=[rows, 1])
    message.raw_input_contents.append(np.full((rows, 1), first, np.float32).tobytes())
    for name, number in parameters.items():
        message.parameters[name].int64_param = number
    return message


def send(stub: pb_grpc.GRPCInferenceServiceStub, messages: list[pb.ModelInferRequest], **metadata: str) -> list[grpc.StatusCode]:
    """All at once; what became of them."""
    header = tuple((name.replace("_", "-"), text) for name, text in metadata.items())
    calls = [stub.ModelInfer.future(message, timeout=30, metadata=header) for message in messages]
    return [grpc.StatusCode.OK if (error := call.exception()) is None else error.code() for call in calls]


def failures(before: Values, after: Values, model: str) -> dict[str, float]:
    labels = {"model": model, "version": "1"}
    by_reason = {reason: increase(before, after, "nv_inference_request_failure", **labels, reason=reason) for reason in REASONS}
    return {reason: count for reason, count in by_reason.items() if count}


def statistics(stub: pb_grpc.GRPCInferenceServiceStub, model: str) -> pb.ModelStatistics:
    found: pb.ModelStatistics = stub.ModelStatistics(pb.ModelStatisticsRequest(name=model), timeout=10).model_stats[0]
    return found


def test_obs_01_failures_are_counted_by_reason(stack: Stack) -> None:
    url = metrics_url(stack.program)
    with grpc.insecure_channel(stack.addresses.edge_grpc) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        before, was = settled(url), statistics(stub, "id_fails")
        assert set(send(stub, [request("id_fails") for _ in range(10)])) == {grpc.StatusCode.OK}
        misshapen = request("id_fails")
        misshapen.inputs[0].shape[:] = [1, 2]
        misshapen.raw_input_contents[0] *= 2
        assert set(send(stub, [misshapen] * 10)) == {grpc.StatusCode.INVALID_ARGUMENT}
        assert set(send(stub, [request("nobody") for _ in range(10)])) == {grpc.StatusCode.NOT_FOUND}
        assert set(send(stub, [request("id_fails", 99.0) for _ in range(10)])) == {grpc.StatusCode.INTERNAL}
        timely = [request("slow_unbatched"), *(request("slow_unbatched", timeout=1000) for _ in range(10))]
        assert send(stub, timely).count(grpc.StatusCode.DEADLINE_EXCEEDED) == 10
        for _ in range(10):
            assert (
                httpx.post(f"{stack.addresses.edge_url}/v2/models/id_fails/infer", content=b'{"inputs": [', timeout=10).status_code == 400
            )
        after, now = settled(url), statistics(stub, "id_fails")
    assert increase(before, after, "nv_inference_request_success", model="id_fails", version="1") == 10
    assert now.inference_stats.success.count - was.inference_stats.success.count == 10
    assert failures(before, after, "id_fails") == {"OTHER": 10, "BACKEND": 10}
    assert now.inference_stats.fail.count - was.inference_stats.fail.count == 20
    assert failures(before, after, "slow_unbatched") == {"REJECTED": 10}
    counted = {
        code: increase(before, after, "tensorgate_rpcs_total", method=OIP, code=code) for code in ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
    }
    assert counted == {"OK": 11, "INVALID_ARGUMENT": 10, "NOT_FOUND": 10}
    # JSON that nobody can read names no model's request: it is counted at its door.
    assert increase(before, after, "tensorgate_rpcs_total", method=REST, code="INVALID_ARGUMENT") == 10


def test_obs_03_callers_choose_no_label(stack: Stack) -> None:
    url = metrics_url(stack.program)
    before = scrape(url)
    with grpc.insecure_channel(stack.addresses.edge_grpc) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(10):
            messages = [request(str(uuid.uuid4())) for _ in range(50)]
            assert set(send(stub, messages, x_request_id=str(uuid.uuid4()), user_agent=str(uuid.uuid4()))) == {grpc.StatusCode.NOT_FOUND}
            versioned = request("id_fails")
            versioned.model_version = str(uuid.uuid4().int)
            assert set(send(stub, [versioned])) == {grpc.StatusCode.NOT_FOUND}

    def visit(number: int) -> int:
        return httpx.get(f"{stack.addresses.edge_url}/v2/models/{uuid.uuid4()}/versions/{number}", timeout=10).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(visit, range(50))) == {404}
    assert len(scrape(url)) - len(before) < 20


@pytest.mark.parametrize("door", ["grpc", "rest"])
def test_nobody_outside_can_name_the_caller(stack: Stack, door: str) -> None:
    url = metrics_url(stack.program)
    before = settled(url)
    if door == "grpc":
        with grpc.insecure_channel(stack.addresses.edge_grpc) as channel:
            stub = pb_grpc.GRPCInferenceServiceStub(channel)
            assert send(stub, [request("id_fails")], **{"x-tensorgate-caller": "mallory"}) == [grpc.StatusCode.OK]
        with grpc.insecure_channel(stack.addresses.node_grpc) as channel:
            stub = pb_grpc.GRPCInferenceServiceStub(channel)
            assert send(stub, [request("id_fails")], **{"x-tensorgate-caller": "mallory"}) == [grpc.StatusCode.OK]
        sent = 2
    else:
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]}
        for name in ("x-tensorgate-caller", "X-Tensorgate-CALLER"):
            answer = httpx.post(f"{stack.addresses.edge_url}/v2/models/id_fails/infer", json=body, headers={name: "mallory"}, timeout=10)
            assert answer.status_code == 200
        sent = 2
    after = settled(url)
    assert "mallory" not in str(after)
    labels = {"caller": "anonymous", "model": "id_fails", "version": "1", "outcome": "ok"}
    assert increase(before, after, "tensorgate_usage_requests_total", **labels) == sent
    assert increase(before, after, "tensorgate_usage_rows_total", **labels) == sent


def test_obs_09_rows_and_runs_at_every_door(stack: Stack) -> None:
    url = metrics_url(stack.program)
    with grpc.insecure_channel(stack.addresses.node_grpc) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        before, was = settled(url), statistics(stub, "delayed_fp32")
        send(stub, [request("delayed_fp32", rows=4)])
        assert set(send(stub, [request("delayed_fp32") for _ in range(8)])) == {grpc.StatusCode.OK}
        after, now = settled(url), statistics(stub, "delayed_fp32")
        with pytest.raises(grpc.RpcError) as caught:
            statistics(stub, "nope")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    labels = {"model": "delayed_fp32", "version": "1"}
    runs = now.execution_count - was.execution_count
    assert now.inference_count - was.inference_count == increase(before, after, "nv_inference_count", **labels) == 12
    assert runs == increase(before, after, "nv_inference_exec_count", **labels)
    assert runs <= 8
    batched = {item.batch_size: item.compute_infer.count for item in now.batch_stats}
    for item in was.batch_stats:
        batched[item.batch_size] -= item.compute_infer.count
    assert sum(rows * count for rows, count in batched.items()) == 12
    assert sum(batched.values()) == runs
    over_rest = httpx.get(f"{stack.addresses.edge_url}/v2/models/delayed_fp32/stats", timeout=10).json()["model_stats"][0]
    assert int(over_rest["inference_count"]) == now.inference_count
    assert int(over_rest["inference_stats"]["success"]["ns"]) == now.inference_stats.success.ns > 0


def test_both_formats_and_health(stack: Stack) -> None:
    url = metrics_url(stack.program)
    assert scrape(url, OPENMETRICS).keys() == scrape(url).keys()
    assert httpx.get(url.replace("/metrics", "/health"), timeout=10).status_code == 200
