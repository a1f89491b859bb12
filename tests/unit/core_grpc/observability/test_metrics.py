"""What a scrape shows: its formats, its names, its documentation, its server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from core_grpc.errors import StatusCode
from core_grpc.models.statistics import BUCKET_BOUNDS_S, ModelStatistics
from core_grpc.observability.exposition import exposition
from core_grpc.observability.figures import DurationFigures, ModelFigures, ModelStateFigure, NodeFigures, UsageFigures, UsageKey
from core_grpc.observability.metrics_server import MetricsServer
from core_grpc.observability.rpc_counts import RpcCounts
from core_grpc.observability.series import by_name

ROOT = Path(__file__).resolve().parents[4]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def figures() -> NodeFigures:
    """One model with a name that needs escaping, and one that was never asked."""
    statistics = ModelStatistics()
    for seconds in (0.0001, 0.003, 100.0):
        statistics.succeeded(2, 0.0, 0.0, seconds)
    took = DurationFigures(3, statistics.compute_infer.ns, tuple(statistics.compute_buckets))
    never = DurationFigures(0, 0, (0,) * (len(BUCKET_BOUNDS_S) + 1))
    asked = ModelFigures(
        'a "b"\n', "1", {"OTHER": 2, "BACKEND": 0}, 6, 2, took, took, took, 7000, took, never, {3: 2, 2000: 1}, 5, 1, 2, 3, 4
    )
    idle = ModelFigures("idle", "1", {"OTHER": 0}, 0, 0, never, never, never, 0, never, never, {}, 0, 0, 0, 0, 0)
    return NodeFigures(
        is_ready=True,
        bounds_s=BUCKET_BOUNDS_S,
        models=[asked, idle],
        states=[ModelStateFigure("idle", "1", "READY")],
        rpcs={("/a.B/C", "OK"): 4},
        usage={UsageKey("key", "m", "1", "ok"): UsageFigures(1, 2, 3, 4, 1_500_000_000)},
    )


@pytest.mark.parametrize("accept", ["", OPENMETRICS, "text/plain;version=0.0.4", f"{OPENMETRICS};q=0.5,text/plain;q=0.3"])
def test_each_format_is_what_its_parser_reads(accept: str) -> None:
    body, content_type = exposition(figures(), 0.25, accept)
    assert ("openmetrics" in content_type) == ("openmetrics" in accept)
    parse = openmetrics_families if "openmetrics" in content_type else text_string_to_metric_families
    samples = {
        (item.name.removesuffix("_total"), *sorted(item.labels.items())): item.value
        for family in parse(body.decode())
        for item in family.samples
    }
    labels = (("model", 'a "b"\n'), ("version", "1"))
    assert samples["nv_inference_request_success", *labels] == 3
    assert samples["nv_inference_request_failure", labels[0], ("reason", "OTHER"), labels[1]] == 2
    assert samples["tensorgate_usage_compute_seconds", ("caller", "key"), ("model", "m"), ("outcome", "ok"), ("version", "1")] == 1.5
    assert samples["tensorgate_event_loop_lag_seconds",] == 0.25
    buckets = {
        bound: samples["tensorgate_compute_duration_seconds_bucket", ("le", bound), *labels] for bound in ("0.0001", "0.0025", "0.005")
    }
    assert buckets == {"0.0001": 1, "0.0025": 1, "0.005": 2}
    assert samples["tensorgate_compute_duration_seconds_bucket", ("le", "+Inf"), *labels] == 3
    assert samples["tensorgate_compute_duration_seconds_sum", *labels] == pytest.approx(100.0031)
    assert samples["tensorgate_batch_rows_bucket", ("le", "1024.0"), *labels] == 2
    assert samples["tensorgate_batch_rows_sum", *labels] == 2006
    assert any(name == "process_resident_memory_bytes" for name, *_ in samples)


def test_tritons_counters_are_counters_under_their_own_names() -> None:
    text = exposition(figures(), 0.0, "")[0].decode()
    assert "# TYPE nv_inference_request_success counter\nnv_inference_request_success{" in text
    assert "untyped" not in text


def test_a_model_that_was_never_asked_has_counters_and_no_histogram() -> None:
    text = exposition(figures(), 0.0, "")[0].decode()
    assert 'nv_inference_request_success{model="idle",version="1"} 0.0' in text
    assert not re.search(r'_bucket\{[^}]*model="idle"', text)


def test_the_documentation_lists_what_is_exported() -> None:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    documented = {
        row[0]: row[1:] for row in re.findall(r"^\| `((?:nv|tensorgate)_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    }
    exported = {name: (item.kind, ", ".join(item.labels), item.text) for name, item in by_name().items()}
    assert documented == exported


def test_the_dashboard_asks_for_what_is_exported() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "tensorgate.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [item["query"] for item in board["templating"]["list"]]
    asked = {name for text in expressions for name in re.findall(r"\b(?:nv|tensorgate|process)_\w+", text)}
    exported = set(by_name()) | {"process_resident_memory_bytes"}
    exported |= {f"{name}_{part}" for name, item in by_name().items() if item.kind == "histogram" for part in ("bucket", "sum", "count")}
    assert asked
    assert asked <= exported
    labels = {label for item in by_name().values() for label in item.labels} | {"le", "job", "instance"}
    assert {name.strip() for text in expressions for names in re.findall(r"by \((.*?)\)", text) for name in names.split(",")} <= labels
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_rpcs_are_counted_by_our_own_names() -> None:
    counts = RpcCounts()
    counts.of("/a.B/C")[StatusCode.NOT_FOUND] += 2
    counts.of("/a.B/C")[StatusCode.OK] += 1
    counts.of("/a.B/D")
    assert counts.figures() == {("/a.B/C", "NOT_FOUND"): 2, ("/a.B/C", "OK"): 1}


class TestServer:
    @pytest.fixture
    async def server(self) -> Iterator[MetricsServer]:  # type: ignore[misc]
        self.is_ready = True
        server = MetricsServer("127.0.0.1", 0, lambda: figures()._replace(is_ready=self.is_ready))
        yield server
        await asyncio.to_thread(server.close)

    async def test_metrics_and_health(self, server: MetricsServer) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            answer = await client.get("/metrics?name=x", headers={"accept": OPENMETRICS})
            assert (answer.status_code, answer.text.endswith("# EOF\n")) == (200, True)
            assert (await client.head("/metrics")).content == b""
            assert (await client.get("/health")).status_code == 200
            self.is_ready = False
            assert (await client.get("/health")).text == "not ready\n"
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/")).status_code == 404
            assert (await client.post("/metrics")).status_code == 501

    async def test_connections_that_say_nothing_hold_up_nobody(self, server: MetricsServer) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{server.port}/health")).status_code == 200
        for _, writer in silent:
            writer.close()

    async def test_the_port_is_free_after_it_is_closed(self) -> None:
        first = MetricsServer("127.0.0.1", 0, figures)
        with pytest.raises(OSError, match="in use"):
            MetricsServer("127.0.0.1", first.port, figures)
        await asyncio.to_thread(first.close)
        second = MetricsServer("127.0.0.1", first.port, figures)
        await asyncio.to_thread(second.close)
