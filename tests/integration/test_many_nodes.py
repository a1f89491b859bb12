"""Several nodes behind one edge: who gets which request, and that nobody notices when nodes go and come."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from bench.steady_load import Callers, Load, steady_load
from protos.inference import grpc_service_pb2 as oip
from protos.inference import grpc_service_pb2_grpc as oip_grpc
from tests.integration.conftest import free_address
from tests.support.models import write_identity
from tests.support.programs import Program, descendants, is_running, wait_until, write_identity_model

NODES = 3
WAIT_MS = 10
READY = "Ctrl-C finishes accepted work"
ECHO = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


class Nodes(Program):
    """A running ``tensorgate serve --nodes 3``."""

    def __init__(self, repository: Path) -> None:
        self.edge = free_address()
        self.url = self.edge.url()
        self.address = f"127.0.0.1:{self.edge.port}"
        flags = ["--nodes", str(NODES), "--port", str(self.edge.port), "--grpc-port", "0", "--models", str(repository)]
        super().__init__("tensorgate", "serve", *flags)

    def pids(self) -> dict[str, int]:
        """The processes of the nodes, by name."""
        marks = {name: f"{name}.yaml" for name in node_names()}
        found = descendants(self.pid)
        return {name: pid for name, mark in marks.items() for pid, command in found.items() if mark in command}

    def listeners(self) -> list[str]:
        """The nodes' own addresses, as the program printed them."""
        line = re.search(r"^  nodes +(.*)$", self.output, re.MULTILINE)
        assert line is not None, self.output
        return line[1].split(", ")

    def sequence(self, number: int, headers: dict[str, str], *, is_start: bool) -> httpx.Response:
        """One request of a sequence."""
        body = {"parameters": {"sequence_id": number, "sequence_start": is_start}, **ECHO}
        return httpx.post(f"{self.url}/v2/models/turns/infer", json=body, headers=headers, timeout=30)


def node_names() -> list[str]:
    return [f"node-{number}" for number in range(1, NODES + 1)]


def answered(listeners: list[str], model: str) -> list[int]:
    """How many requests for a model each node has answered."""
    counts = []
    for listener in listeners:
        with grpc.insecure_channel(listener) as channel:
            request = oip.ModelStatisticsRequest(name=model)
            answer = oip_grpc.GRPCInferenceServiceStub(channel).ModelStatistics(request, timeout=10)
        counts.append(sum(item.inference_stats.success.count for item in answer.model_stats))
    return counts


def write_models(repository: Path) -> None:
    write_identity_model(repository, "echo", delay_ms=WAIT_MS)
    write_identity(repository, "turns", {"X": ("FP32", [-1, -1])}, "max_batch_size = 8\n[sequence]\nmax_idle_ms = 60000\n")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    with Nodes(repository) as running:
        running.wait_for(READY)
        yield running


def assert_nobody_noticed(load: Load) -> None:
    assert not load.unary.failures
    assert not load.rest.failures


def test_every_node_works_and_says_where_it_is(nodes: Nodes) -> None:
    for _ in range(20 * NODES):
        assert httpx.post(f"{nodes.url}/v2/models/echo/infer", json=ECHO).status_code == 200
    assert all(answered(nodes.listeners(), "echo"))
    metrics = re.findall(r"^  metrics +(\S+)$", nodes.output, re.MULTILINE)
    assert len(set(metrics)) == NODES
    assert all("nv_inference_count" in httpx.get(url).text for url in metrics)


def test_a_sequence_stays_on_the_node_that_its_header_names(nodes: Nodes) -> None:
    used = set()
    for number in range(1, 13):
        header = {"x-sequence-id": str(number)}
        before = answered(nodes.listeners(), "turns")
        for turn in range(4):
            answer = nodes.sequence(number, header, is_start=turn == 0)
            assert answer.status_code == 200, answer.text
        grown = [after - first for after, first in zip(answered(nodes.listeners(), "turns"), before, strict=True)]
        assert sorted(grown) == [0] * (NODES - 1) + [4]
        used.add(grown.index(4))
    assert len(used) > 1


def test_a_sequence_that_could_land_anywhere_is_refused(nodes: Nodes) -> None:
    answer = nodes.sequence(77, {}, is_start=True)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("parameter 'sequence_id': there are several nodes behind this edge: repeat the id in")
    # Nobody can say that this is so, or that it is not, but the edge.
    assert nodes.sequence(78, {"x-tensorgate-spread": "1", "x-sequence-id": "78"}, is_start=True).status_code == 200
    request = oip.ModelInferRequest(model_name="turns", raw_input_contents=[b"\0" * 16])
    request.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    request.parameters["sequence_id"].int64_param = 79
    request.parameters["sequence_start"].bool_param = True
    with grpc.insecure_channel(nodes.address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request, timeout=10)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert stub.ModelInfer(request, timeout=10, metadata=[("x-sequence-id", "79")]).model_name == "turns"
        # One stream is one node.
        assert not next(stub.ModelStreamInfer(iter([request]), timeout=10)).error_message


async def test_a_killed_node_costs_no_unary_call_and_each_of_its_streams_once(nodes: Nodes) -> None:
    async with steady_load(nodes.address, Callers("echo", unary=8, rest=4, streams=6)) as load:
        before = nodes.pids()
        os.kill(before["node-2"], signal.SIGKILL)
        await load.more_answers(100)
        # The facade asks whoever is there.
        assert (await asyncio.to_thread(httpx.get, f"{nodes.url}/health")).status_code == 200
        await asyncio.to_thread(wait_until, lambda: nodes.pids().get("node-2") not in (None, before["node-2"]), "node-2 is started again")
        await load.more_answers(100)
    assert_nobody_noticed(load)
    assert load.streams.failed <= 6
    await asyncio.to_thread(wait_until, lambda: "node-2 is back" in nodes.output, "node-2 is back")


async def test_all_nodes_are_restarted_and_nobody_notices(nodes: Nodes) -> None:
    before = nodes.pids()
    async with steady_load(nodes.address, Callers("echo", unary=4, rest=4, streams=0)) as load:
        nodes.send(signal.SIGUSR2)
        await asyncio.to_thread(nodes.wait_for, "all are restarted")
        await load.more_answers(50)
    assert_nobody_noticed(load)
    after = nodes.pids()
    assert set(after) == set(node_names())
    assert not set(after.values()) & set(before.values())


async def test_a_frozen_node_costs_time_and_no_unary_call(nodes: Nodes) -> None:
    frozen = nodes.pids()["node-1"]
    async with steady_load(nodes.address, Callers("echo", unary=4, rest=2, streams=0)) as load:
        os.kill(frozen, signal.SIGSTOP)
        try:
            # Every caller meets the frozen node, waits for the edge to find out, and is answered by another one.
            await load.more_answers(400)
        finally:
            os.kill(frozen, signal.SIGCONT)
    assert_nobody_noticed(load)


async def test_nodes_come_and_go_by_a_file_without_a_restart(nodes: Nodes, tmp_path: Path) -> None:
    first, second, _ = nodes.listeners()
    file, edge = tmp_path / "nodes.json", free_address()

    def change(action: str, endpoint: str) -> None:
        with Program("tensorgate", "nodes", action, str(file), endpoint) as command:
            assert command.wait() == 0, command.output

    change("add", first)
    flags = ["--port", str(edge.port), "--nodes-file", str(file), "--facade", f"127.0.0.1:{free_address().port}"]
    with Program("tensorgate", "edge", *flags) as running:
        running.wait_for("edge listens on")
        async with steady_load(f"127.0.0.1:{edge.port}", Callers("echo", unary=4, rest=2, streams=0)) as load:
            before = answered([second], "echo")
            await load.more_answers(20)
            assert answered([second], "echo") == before
            change("add", second)
            await asyncio.to_thread(wait_until, lambda: answered([second], "echo") > before, "the second node has requests")
            change("remove", first)
            # Only the second one is left: the first stands still while answers go on.
            await asyncio.to_thread(wait_until, lambda: stands_still(first), "the first node has none any more")
            await load.more_answers(20)
        assert_nobody_noticed(load)


def stands_still(listener: str) -> bool:
    before = answered([listener], "echo")
    time.sleep(0.5)
    return answered([listener], "echo") == before


def test_management_names_the_nodes_own_listeners(nodes: Nodes) -> None:
    answer = httpx.post(f"{nodes.url}/v2/repository/models/echo/load", json={})
    assert answer.status_code == 403
    assert answer.json()["error"] == "management is not offered here: it would reach one of several nodes; ask each node's own listener"


def test_a_stop_under_load_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    write_models(tmp_path)
    write_identity_model(tmp_path, "slow", delay_ms=700)
    with Nodes(tmp_path) as running:
        running.wait_for(READY)
        children = descendants(running.pid)

        async def stop_under_load() -> list[int]:
            async with httpx.AsyncClient(timeout=30) as client:
                calls = [asyncio.create_task(client.post(f"{running.url}/v2/models/slow/infer", json=ECHO)) for _ in range(8)]
                await asyncio.sleep(0.4)
                running.send(signal.SIGTERM)
                return [answer.status_code for answer in await asyncio.gather(*calls)]

        assert asyncio.run(stop_under_load()) == [200] * 8
        assert running.wait() == 0
        assert not [command for pid, command in children.items() if is_running(pid)]
