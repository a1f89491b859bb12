"""Rights with two nodes behind the edge: each node knows the caller, whichever way the request took."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.identified import ALLOWED, DENIED, Identified, identified_stack


@pytest.fixture(scope="module")
def two_nodes(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identified]:
    environ = {"TENSORGATE_SERVE_NODES": "2", "TENSORGATE_SERVER_PORT": "0", "TENSORGATE_SERVER_METRICS_PORT": "0"}
    with identified_stack(free_port, "envoy", tmp_path_factory.mktemp("two_nodes"), environ) as running:
        yield running


@pytest.mark.parametrize(("caller", "model", "status"), [("limited", ALLOWED, 200), ("limited", DENIED, 403), ("expired", ALLOWED, 401)])
def test_a_right_holds_at_each_node(two_nodes: Identified, caller: str, model: str, status: int) -> None:
    header = two_nodes.header(caller)
    for _ in range(8):
        assert two_nodes.infer(model, header).status_code == status
        # By way of the facade and the edge's private listener.
        predict = httpx.post(f"{two_nodes.url}/predict", json={"input": [[7]], "model": model}, headers=header, timeout=20)
        assert predict.status_code == status, predict.text


def test_nobody_says_who_they_are(two_nodes: Identified) -> None:
    forged = {"x-tensorgate-caller": "operator", "x-tensorgate-rights": "model:* management", "x-tensorgate-door": "rest"}
    assert two_nodes.infer(ALLOWED, forged).status_code == 401
    assert httpx.post(f"{two_nodes.url}/predict", json={"input": [[7]], "model": ALLOWED}, headers=forged, timeout=20).status_code == 401


def test_management_would_reach_one_node_and_is_refused(two_nodes: Identified) -> None:
    answer = httpx.post(f"{two_nodes.url}/v2/repository/models/{ALLOWED}/unload", json={}, headers=two_nodes.header("operator"), timeout=20)
    assert answer.status_code == 403
    assert answer.json()["error"] == "management is not offered here: it would reach one of several nodes; ask each node's own listener"
