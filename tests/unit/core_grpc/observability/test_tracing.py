"""Which requests are traced, and the files they are written to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core_grpc.errors import InvalidArgument, Unsupported
from core_grpc.observability.tracing import Tracer, TraceSettings

ON = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def traced(tracer: Tracer, file: Path, *models: str) -> list[str]:
    """The models of the requests that are traced, of requests to these; their ids count from 1."""
    for position, model in enumerate(models, 1):
        tracer.record(model, "1", str(position), {"REQUEST_START": 1.5, "REQUEST_END": 2.0})
    tracer.close()
    if not file.exists():
        return []
    found = [f"{item['model_name']} {item['request_id']}" for item in json.loads(file.read_text()) if "model_name" in item]
    file.unlink()
    return found


def test_off_at_first_and_without_a_file_whatever_is_set(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    tracer = Tracer(str(tmp_path / "t"), pool)
    assert not tracer.is_on
    assert tracer.settings() == TraceSettings()
    tracer.update("", ON)
    assert tracer.is_on
    tracer.update("", {"trace_level": []})
    assert not tracer.is_on
    without = Tracer("", pool)
    without.update("", ON)
    assert not without.is_on


def test_one_of_so_many_and_no_more_than_wanted(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    tracer = Tracer(str(tmp_path / "t"), pool)
    tracer.update("", {**ON, "trace_rate": ["3"], "trace_count": ["2"]})
    assert traced(tracer, tmp_path / "t", *["m"] * 12) == ["m 3", "m 6"]
    assert tracer.settings().trace_count == 0


def test_a_models_own_settings_count_its_own_requests(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    tracer = Tracer(str(tmp_path / "t"), pool)
    tracer.update("b", {**ON, "trace_rate": ["2"], "trace_count": ["1"]})
    assert tracer.is_on
    assert traced(tracer, tmp_path / "t", "a", "b", "a", "b", "b", "b") == ["b 4"]
    assert tracer.settings("a") == TraceSettings()
    assert tracer.update("b", {name: [] for name in (*ON, "trace_count")}) == TraceSettings()
    assert not tracer.is_on


def test_a_model_takes_the_global_setting_that_it_does_not_have(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    tracer = Tracer(str(tmp_path / "t"), pool)
    tracer.update("", {"log_frequency": ["5"]})
    own = tracer.update("m", {"trace_rate": ["7"]})
    assert (own.trace_rate, own.log_frequency) == (7, 5)
    tracer.update("", {"log_frequency": ["6"], "trace_rate": ["9"]})
    own = tracer.settings("m")
    assert (own.trace_rate, own.log_frequency) == (7, 6)


def test_a_file_after_so_many_traces_and_the_rest_at_the_end(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    tracer = Tracer(str(tmp_path / "t"), pool)
    tracer.update("", {**ON, "log_frequency": ["2"]})
    assert traced(tracer, tmp_path / "t", *"abcde") == ["e 5"]
    pool.shutdown()
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert {name: [item["id"] for item in items] for name, items in files.items()} == {"t.0": [1, 1, 2, 2], "t.1": [3, 3, 4, 4]}
    assert files["t.0"][:2] == [
        {"id": 1, "model_name": "a", "model_version": 1, "request_id": "1"},
        {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 1_500_000_000}, {"name": "REQUEST_END", "ns": 2_000_000_000}]},
    ]


def test_a_file_that_cannot_be_written_is_one_log_line(tmp_path: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer(str(tmp_path / "no such directory" / "t"), pool)
    tracer.update("", ON)
    assert traced(tracer, tmp_path / "t", "m") == []
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("trace_file", ["/tmp/x"], Unsupported),
        ("trace_mode", ["opentelemetry"], Unsupported),
        ("trace_level", ["TENSORS"], Unsupported),
        ("trace_level", ["TIMESTAMPS", "x"], InvalidArgument),
        ("trace_rate", ["0"], InvalidArgument),
        ("trace_rate", ["1", "2"], InvalidArgument),
        ("trace_rate", ["many"], InvalidArgument),
        ("trace_count", ["-2"], InvalidArgument),
        ("log_frequency", [str(1 << 31)], InvalidArgument),
        ("nonsense", ["1"], InvalidArgument),
    ],
)
def test_an_update_is_whole_or_not_at_all(pool: ThreadPoolExecutor, name: str, values: Sequence[str], error: type[Exception]) -> None:
    tracer = Tracer("file", pool)
    for model in ("", "m"):
        with pytest.raises(error):
            tracer.update(model, {"log_frequency": ["5"], **ON, name: values})
        assert tracer.settings(model) == TraceSettings()
    assert not tracer.is_on


def test_files_that_wait_for_the_pool_are_written_before_the_end(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    busy = threading.Event()
    pool.submit(busy.wait, 5)
    tracer = Tracer(str(tmp_path / "t"), pool)
    tracer.update("", {**ON, "log_frequency": ["1"]})
    tracer.record("m", "1", "7", {"REQUEST_START": 1.5})

    def stop() -> None:
        tracer.close()
        pool.shutdown(cancel_futures=True)  # As a node ends.

    stopping = threading.Thread(target=stop)
    stopping.start()
    stopping.join(0.1)
    busy.set()
    stopping.join(5)
    assert json.loads((tmp_path / "t.0").read_text())[0]["request_id"] == "7"
