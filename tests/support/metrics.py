"""A node's metrics as a monitoring system reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.support.programs import Program, wait_until

Values: TypeAlias = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""By sample name and labels."""


def metrics_url(program: Program) -> str:
    """Where a running program said that its metrics are."""
    found = re.search(r"http://127\.0\.0\.1:\d+/metrics", program.output)
    assert found, program.output
    return found[0]


def scrape(url: str, accept: str = "") -> Values:
    """Every sample, read by the parser of the format that was answered."""
    answer = httpx.get(url, headers={"accept": accept} if accept else {}, timeout=10)
    assert answer.status_code == 200
    parse = openmetrics_families if "openmetrics" in answer.headers["content-type"] else text_string_to_metric_families
    return {(_name(item.name), frozenset(item.labels.items())): item.value for family in parse(answer.text) for item in family.samples}


def _name(name: str) -> str:
    """The parser of Prometheus's format adds _total to the names of counters; Triton's do not end in it."""
    return name.removesuffix("_total") if name.startswith("nv_") else name


def value(values: Values, name: str, **labels: str) -> float:
    """One sample; 0 where there is none."""
    return values.get((name, frozenset(labels.items())), 0.0)


def settled(url: str) -> Values:
    """The metrics once no request is in work."""

    def idle() -> bool:
        return not any(number for (name, _), number in scrape(url).items() if name == "tensorgate_requests_in_work")

    wait_until(idle, "requests are in work")
    return scrape(url)


def increase(before: Values, after: Values, name: str, **labels: str) -> float:
    """By how much a sample grew."""
    return value(after, name, **labels) - value(before, name, **labels)
