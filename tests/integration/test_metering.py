"""Statistics, metrics and usage against the callers' own count, on real nodes: mixed outcomes, callers, a restart."""

from __future__ import annotations

import json
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from protos.inference import grpc_service_pb2_grpc as pb_grpc
from tests.support.metrics import Values, metrics_url, scrape, settled, value
from tests.support.models import write_identity
from tests.support.programs import Program, wait_until
from tests.support.python_models import write_python_model
from tests.support.stack import TRANSPORTS

ROW = {"X": ("FP32", [-1, 4])}
FOUR = {"X": ("FP32", [1, 4])}
MODELS = ("fast", "fails", "held", "narrow", "slow", "stream")
STREAM = """
    class Model:
        def execute(self, request):
            for number in range(int(request.inputs["X"][0, 0])):
                if number == 3:
                    raise ValueError("three is too many")
                yield {"Y": request.inputs["X"]}
"""


def write_models(repository: Path) -> None:
    write_identity(repository, "fast", ROW, "max_batch_size = 8\n[batching]\nmax_queue_delay_ms = 5\n[warmup]\ncount = 0\n")
    write_identity(repository, "fails", ROW, "max_batch_size = 8\n[warmup]\ncount = 0\n[identity]\nfail_value = 99.0\n")
    write_identity(repository, "held", ROW, "max_batch_size = 8\n[batching]\nmax_queue_delay_ms = 60000\n[warmup]\ncount = 0\n")
    one_waits = "max_batch_size = 1\n[warmup]\ncount = 0\n[queue]\nmax_rows = 1\n[identity]\ndelay_ms = 100\n"
    write_identity(repository, "narrow", ROW, one_waits)
    write_identity(repository, "slow", ROW, "max_batch_size = 8\n[warmup]\ncount = 0\n[identity]\ndelay_ms = 2000\n")
    write_python_model(
        repository, "stream", STREAM, config="max_batch_size = 0\n[python]\ndecoupled = true", inputs=FOUR, outputs={"Y": FOUR["X"]}
    )


@contextmanager
def node(directory: Path, transport: str, free_port: Callable[[], int]) -> Iterator[tuple[Program, str]]:
    """A running node and its address; drained at the end, which must succeed."""
    port = free_port()
    env = {"TENSORGATE_DRAIN_NOTICE_S": "0", "TENSORGATE_USAGE_FLUSH_S": "0.2"}
    env["TENSORGATE_USAGE_DATABASE"] = str(directory / "usage.db")
    arguments = ["node", "--models", str(directory / "models"), "--port", str(port), "--unix-socket", str(directory / "core.sock")]
    with Program("tensorgate", *arguments, "--transport", transport, env=env) as program:
        program.wait_for("models ready")
        yield program, f"127.0.0.1:{port}"
        program.send(signal.SIGTERM)
        assert program.wait() == 0, program.output


def request(model: str, first: float = 0.0, rows: int = 1, columns: int = 4) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="X", datatype="FP32", shape=[rows, columns])
    message.raw_input_contents.append(np.full((rows, columns), first, np.float32).tobytes())
    return message


class Caller:
    """Calls, and counts what came of it: requests by caller, model and outcome, and rows of what was answered."""

    def __init__(self, address: str, name: str, header: str = "") -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = pb_grpc.GRPCInferenceServiceStub(self.channel)
        self.metadata = (("x-tensorgate-caller", header),) if header else ()
        self.name = name
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.rows: Counter[str] = Counter()

    def begin(self, message: pb.ModelInferRequest) -> Any:
        return self.stub.ModelInfer.future(message, timeout=30, metadata=self.metadata)

    def end(self, message: pb.ModelInferRequest, call: Any, reason: str) -> None:
        """Waits for a call, which either is answered or fails for ``reason``."""
        model = message.model_name
        try:
            call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            self.outcomes[self.name, model, "cancelled" if reason == "CANCELED" else "failed"] += 1
            self.reasons[model, reason] += 1
        else:
            self.outcomes[self.name, model, "ok"] += 1
            self.rows[model] += message.inputs[0].shape[0]

    def run(self, messages: list[pb.ModelInferRequest], reason: str = "none") -> None:
        """All at once."""
        for message, call in [(message, self.begin(message)) for message in messages]:
            self.end(message, call, reason)

    def stream(self, count: int) -> None:
        """One request to the decoupled model for so many answers; from the fourth on it fails."""
        list(self.stub.ModelStreamInfer(iter([request("stream", count)]), timeout=30, metadata=self.metadata))
        self.outcomes[self.name, "stream", "failed" if count > 3 else "ok"] += 1
        if count > 3:
            self.reasons["stream", "BACKEND"] += 1
        else:
            self.rows["stream"] += 1

    def mixed_load(self, url: str) -> None:
        scrape(url)  # The first one is slow: it loads what makes the text.
        self.run([request("fast", rows=rows) for rows in (1, 2, 3, 1, 1, 4, 2, 8)])
        self.run([request("fast", columns=5) for _ in range(3)], "OTHER")
        self.run([request("fails", first) for first in (0, 99, 1, 99, 2)], "BACKEND")
        self.run([request("narrow") for _ in range(6)], "REJECTED")
        self.stream(2)
        self.stream(5)
        held = request("held", rows=2)
        self.leave(held, url, "nv_inference_pending_request_count")

    def leave(self, message: pb.ModelInferRequest, url: str, once: str) -> None:
        """Calls, and leaves once a metric of the model says 1."""
        call = self.begin(message)
        labels = {"model": message.model_name, "version": "1"}
        wait_until(lambda: value(scrape(url), once, **labels) == 1, f"{once} is 1")
        call.cancel()
        self.end(message, call, "CANCELED")

    def leave_at_work(self, url: str) -> None:
        """Leaves while the engine runs; the metric says when it has run."""
        self.leave(request("slow", rows=2), url, "tensorgate_requests_in_work")
        wait_until(lambda: value(scrape(url), "nv_inference_exec_count", model="slow", version="1") == 1, "the engine has run")

    def statistics(self) -> dict[str, pb.ModelStatistics]:
        return {item.name: item for item in self.stub.ModelStatistics(pb.ModelStatisticsRequest(), timeout=10).model_stats}


def usage(database: Path, by: str) -> list[dict[str, Any]]:
    with Program("tensorgate", "usage", "--database", str(database), "--by", by, "--format", "json") as program:
        assert program.wait() == 0, program.output
        records: list[dict[str, Any]] = json.loads(program.output)
        return records


def check_metrics(values: Values, statistics: Mapping[str, pb.ModelStatistics], callers: list[Caller]) -> None:
    """Metrics and statistics against what the callers counted."""
    outcomes = sum((caller.outcomes for caller in callers), Counter())
    for model in MODELS:
        labels = {"model": model, "version": "1"}
        of_model = statistics[model]
        answered = sum(count for (_, name, outcome), count in outcomes.items() if (name, outcome) == (model, "ok"))
        failed = {
            reason: sum(caller.reasons[model, reason] for caller in callers) for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
        }
        rows = sum(caller.rows[model] for caller in callers)
        assert value(values, "nv_inference_request_success", **labels) == of_model.inference_stats.success.count == answered
        assert {reason: value(values, "nv_inference_request_failure", **labels, reason=reason) for reason in failed} == failed
        assert of_model.inference_stats.fail.count == sum(failed.values())
        assert value(values, "nv_inference_count", **labels) == of_model.inference_count == rows
        assert value(values, "nv_inference_exec_count", **labels) == of_model.execution_count
        assert bool(of_model.execution_count) == (model != "held")
        assert value(values, "nv_inference_compute_infer_duration_us", **labels) == of_model.inference_stats.compute_infer.ns // 1000
        for histogram in ("request", "queue", "compute"):
            assert value(values, f"tensorgate_{histogram}_duration_seconds_count", **labels) == answered
        assert value(values, "tensorgate_batch_rows_count", **labels) == of_model.execution_count
        assert value(values, "tensorgate_batch_rows_sum", **labels) == sum(
            item.batch_size * item.compute_infer.count for item in of_model.batch_stats
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_they_agree_to_the_last_request_across_a_restart(free_port: Callable[[], int], tmp_path: Path, transport: str) -> None:
    write_models(tmp_path / "models")
    all_callers: list[Caller] = []
    engine_s = dict.fromkeys(MODELS, 0.0)
    for _ in range(2):
        with node(tmp_path, transport, free_port) as (program, address):
            # On the edge's own socket the header is believed, elsewhere it is not.
            edge = f"unix:{tmp_path / 'core.sock'}"
            callers = [Caller(edge, "key-1", "key-1"), Caller(edge, "anonymous"), Caller(address, "anonymous", "key-2")]
            url = metrics_url(program)
            for caller in callers:
                caller.mixed_load(url)
            callers[0].leave_at_work(url)
            values = settled(url)
            check_metrics(values, callers[0].statistics(), callers)
            for model in MODELS:
                engine_s[model] += value(values, "tensorgate_engine_seconds_total", model=model, version="1")
            for caller in callers:
                caller.channel.close()
            all_callers += callers
    counted = sum((caller.outcomes for caller in all_callers), Counter())
    kept = usage(tmp_path / "usage.db", "key,model,version,outcome")
    assert {(item["caller"], item["model"], item["outcome"]): item["requests"] for item in kept} == counted
    assert {item["version"] for item in kept} == {"1"}
    for item in kept:
        if item["model"] == "stream":
            continue
        # Identity answers its input; four numbers are 16 bytes a row. Nothing that failed had an answer.
        assert item["output_bytes"] == (item["rows"] * 16 if item["outcome"] == "ok" else 0)
        if item["outcome"] == "ok":
            assert item["input_bytes"] == item["rows"] * 16
    by_model = {item["model"]: item for item in usage(tmp_path / "usage.db", "model")}
    for model in MODELS:
        assert by_model[model]["compute_ns"] == pytest.approx(engine_s[model] * 1e9, abs=len(all_callers))
        rows = sum(item["rows"] for item in kept if (item["model"], item["outcome"]) == (model, "ok"))
        assert rows == sum(caller.rows[model] for caller in all_callers)
    (total,) = usage(tmp_path / "usage.db", "")
    assert (total["requests"], total["ok"]) == (sum(counted.values()), sum(n for (*_, outcome), n in counted.items() if outcome == "ok"))
    # What a caller who left had begun is paid for.
    assert [item["compute_ns"] > 2e9 for item in kept if item["model"] == "slow"] == [True]


def test_a_port_that_is_taken_is_one_line(free_port: Callable[[], int], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        arguments = ["node", "--models", str(tmp_path / "models"), "--port", str(free_port()), "--metrics-port", taken]
        with Program("tensorgate", *arguments) as program:
            assert program.wait() == 1
            assert program.output.splitlines() == [
                f"tensorgate node: port {taken} on 127.0.0.1 is taken: stop what listens there or choose another with --metrics-port"
            ]
