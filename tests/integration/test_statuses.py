"""Every failure's status through real servers: each row of the table, unary and streaming, on both transports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from core_grpc.errors import STATUS
from core_grpc.transports.envoy_host import NodeListener, envoy_command, node_config, node_environment
from tests.support.failing_app import SECRET, STREAM, UNARY
from tests.support.programs import ROOT
from tests.support.stack import TRANSPORTS


@pytest.fixture(scope="module", params=TRANSPORTS)
def channel(
    request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[grpc.Channel]:
    """A channel to the failing methods on one of the transports."""
    port, folder = free_port(), tmp_path_factory.mktemp("failing")
    command, env = _server(request.param, port, folder)
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
            grpc.channel_ready_future(opened).result(30)
            yield opened
        process.kill()


def _server(transport: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    if transport == "grpcio":
        return [sys.executable, "-m", "tests.support.failing_app", str(port)], dict(os.environ)
    config = folder / "node.yaml"
    listener = NodeListener("127.0.0.1", port, str(folder / "admin.sock"))
    config.write_text(node_config(listener, "tests.support.failing_app:app"), encoding="utf-8")
    return envoy_command(config, concurrency=1, log_level="error"), node_environment(os.environ)


def _call(channel: grpc.Channel, path: str, text: str) -> Any:
    """The call's error; grpc's types do not say that it is a call as well, with code, details and metadata."""
    make = channel.unary_unary if path == UNARY else channel.unary_stream
    method = make(
        path,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    request = health_pb2.HealthCheckRequest(service=text)
    with pytest.raises(grpc.RpcError) as caught:
        _read_two(method(request, timeout=10))
    return caught.value


def _read_two(answers: Iterator[health_pb2.HealthCheckResponse]) -> None:
    assert next(answers).status == health_pb2.HealthCheckResponse.SERVING
    next(answers)


@pytest.mark.parametrize("path", [UNARY, STREAM])
@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
def test_every_error_has_its_status_and_its_one_line(channel: grpc.Channel, kind: type, path: str) -> None:
    error = _call(channel, path, kind.__name__)
    assert error.code().value[0] == STATUS[kind]
    assert error.details() == f"{kind.__name__} said so: 100 % Größe\\nsecond line"


@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_an_unexpected_exception_tells_the_caller_nothing_but_where_to_look(channel: grpc.Channel, path: str) -> None:
    error = _call(channel, path, "unexpected")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details().startswith("internal error (request ")
    assert SECRET not in error.details()
    assert "ValueError" not in error.details()


@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_headers_travel_before_a_failure(channel: grpc.Channel, path: str) -> None:
    error = _call(channel, path, "NotFound")
    assert ("x-seen-by", path.rpartition("/")[2].lower()) in [(item.key, item.value) for item in error.initial_metadata()]


@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_a_full_queue_says_when_to_try_again(channel: grpc.Channel, path: str) -> None:
    hints = {item.key: item.value for item in _call(channel, path, "QueueFull").trailing_metadata()}
    assert (hints["retry-after"], hints["grpc-retry-pushback-ms"]) == ("1", "1")
    assert "retry-after" not in {item.key for item in _call(channel, path, "LimitExceeded").trailing_metadata()}
