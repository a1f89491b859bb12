"""A model that cannot be loaded: the server starts, says which and why, serves the others, and readiness tells the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from core_grpc.types import Datatype
from tests.doors.test_vectors import GOOD, assert_answers
from tests.support.doors import DOORS
from tests.support.models import write_badload, write_id
from tests.support.stack import Stack, running_stack


def test_the_others_are_served_and_readiness_tells_the_truth(stack: Stack) -> None:
    assert_answers(DOORS["v2 json"](stack.addresses, GOOD), GOOD)
    assert stack.get("/v2/health/ready").status_code == 200
    assert stack.get("/v2/models/id_fp32/ready").status_code == 200
    ready = stack.get("/v2/models/badload/ready")
    assert (ready.status_code, set(ready.json())) == (503, {"error"})
    assert "badload" in ready.json()["error"]


def test_the_reason_is_in_the_index_and_in_the_log(stack: Stack) -> None:
    model = stack.get("/v1/models/badload").json()["model"]
    assert model["state"] == "MODEL_STATE_UNAVAILABLE"
    assert "model.onnx" in model["reason"]
    assert "model badload version 1 cannot be served" in stack.program.output
    assert model["reason"] in stack.program.output


@pytest.mark.parametrize(("strict", "status"), [("false", 200), ("true", 503)])
def test_strict_readiness_wants_every_model(free_port: Callable[[], int], tmp_path: Path, strict: str, status: int) -> None:
    write_id(tmp_path, Datatype.FP32)
    write_badload(tmp_path)
    with running_stack(free_port, "grpcio", tmp_path, {"TENSORGATE_SERVER_STRICT_READINESS": strict}) as stack:
        # The edge sends nothing to a node that says it is not ready, so its own answer is 503 as well.
        assert stack.get("/v2/health/ready").status_code == status


def test_a_server_whose_every_model_failed_is_not_ready(free_port: Callable[[], int], tmp_path: Path) -> None:
    write_badload(tmp_path)
    with running_stack(free_port, "grpcio", tmp_path) as stack:
        reply = httpx.get(f"{stack.addresses.edge_url}/v2/health/ready")
        assert (reply.status_code, set(reply.json())) == (503, {"error"})
        assert stack.get("/health").status_code == 503
