"""Requests per second and latency of every door, on an identity model: ``python -m bench.doors [--rounds 5] [--scale 1]``.

Everything runs on one machine in one run, the doors in turn, several rounds; the ratios are what counts. The path is the full one: codec,
checks, batcher, instance thread. "echo" is the transport alone. Needs h2load (Debian: nghttp2-client).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import orjson
import simdjson
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench import targets
from bench.check import check
from bench.load import Result, Shape, Target, require_h2load, run_round
from bench.stacks import IDENTITY, Gateway, cpu_s, free_port, gateway, hosted, process_tree, pss_bytes, python_program, repository

SMALL = np.arange(16, dtype=np.float32)[None] / 7
"""64 bytes."""
LARGE = np.random.default_rng(0).random((1, 150_528), np.float32)
"""602,112 bytes: a 224 x 224 x 3 image in floats."""

console = Console(width=120)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are shown (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests of each run (default 1)")
    arguments = parser.parse_args()
    require_h2load()
    with ExitStack() as stack:
        models = stack.enter_context(repository({targets.MODEL: IDENTITY}))
        through = stack.enter_context(gateway(models))
        grpcio_port = free_port()
        environ = {
            "TENSORGATE_SERVER_PORT": str(grpcio_port),
            "TENSORGATE_MODELS_REPOSITORY": str(models),
            "TENSORGATE_SERVER_LOG_LEVEL": "warning",
        }
        grpcio = stack.enter_context(python_program(["-m", "core_grpc"], environ, grpcio_port))
        hosted_echo = stack.enter_context(hosted("bench.echo:app"))
        echo_port = free_port()
        grpcio_echo = stack.enter_context(python_program(["-m", "bench.echo", str(echo_port)], {}, echo_port))
        own = {
            "gRPC in Envoy": through.node,
            "grpc.aio direct": grpcio,
            "echo in Envoy": hosted_echo,
            "echo grpc.aio": grpcio_echo,
        }
        small = measure(_doors(own, through, SMALL), Shape(max(int(6000 * arguments.scale), 64), 8, 4), arguments.rounds, "64-byte tensor")
        large = measure(_doors(own, through, LARGE), Shape(max(int(400 * arguments.scale), 16), 4, 2), arguments.rounds, "600 KB tensor")
        _print_ratios(small, large)
        _print_json_cpu(through, arguments.rounds, arguments.scale)
        _print_memory(through)


def measure(doors: list[Target], shape: Shape, rounds: int, title: str) -> dict[str, Result]:
    """All doors in turn, round after round; prints the table and returns the results by name."""
    results = {door.name: Result() for door in doors}
    for door in doors:
        check(door)
        run_round(door, Shape(max(shape.requests // 10, 32), shape.clients, shape.streams), Result())
    for _ in track(range(rounds), description=title, console=console, transient=True):
        for door in doors:
            run_round(door, shape, results[door.name])
    table = Table(title=f"{title}, {shape.clients * shape.streams} in flight, median of {rounds} rounds (spread of req/s)")
    for column in ("door", "req/s", "min", "max", "p50 ms", "p99 ms"):
        table.add_column(column, justify="left" if column == "door" else "right")
    for name, result in results.items():
        rates = result.requests_per_s
        table.add_row(
            name,
            *(f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates))),
            *(f"{statistics.median(values):.2f}" for values in (result.p50_ms, result.p99_ms)),
        )
    console.print(table)
    return results


def _doors(own: dict[str, str], through: Gateway, values: targets.Floats) -> list[Target]:
    edge = through.edge
    return [
        *(targets.grpc_target(name, address, values) for name, address in own.items()),
        targets.grpc_target("gRPC through the edge", edge, values),
        targets.grpc_web_target(edge, values),
        targets.v1_json_target(edge, values),
        targets.v1_protobuf_json_target(edge, values),
        targets.v2_json_target(edge, values),
        targets.v2_binary_target(edge, values),
    ]


def _print_ratios(small: dict[str, Result], large: dict[str, Result]) -> None:
    table = Table(title="ratios of medians, this run")
    for column in ("ratio", "value", "expected"):
        table.add_column(column)
    for title, results, above, below, expected in (
        ("64 B: gRPC in Envoy / grpc.aio, full path", small, "gRPC in Envoy", "grpc.aio direct", "≥ 2"),
        ("64 B: echo in Envoy / echo grpc.aio, transport only", small, "echo in Envoy", "echo grpc.aio", ""),
        ("64 B: full path / echo, in Envoy", small, "gRPC in Envoy", "echo in Envoy", ""),
        ("64 B: gRPC-Web / gRPC, through the edge", small, "gRPC-Web", "gRPC through the edge", ""),
        ("64 B: v2 JSON / gRPC, through the edge", small, "v2 JSON", "gRPC through the edge", ""),
        ("600 KB: gRPC in Envoy / grpc.aio, full path", large, "gRPC in Envoy", "grpc.aio direct", ""),
        ("600 KB: v2 binary / gRPC, through the edge", large, "v2 binary", "gRPC through the edge", "≥ 0.9"),
        ("600 KB: v2 JSON / v2 binary", large, "v2 JSON", "v2 binary", ""),
    ):
        table.add_row(title, f"{results[above].median_requests_per_s / results[below].median_requests_per_s:.2f}", expected)
    console.print(table)


def _print_json_cpu(through: Gateway, rounds: int, scale: float) -> None:
    """CPU of the node for 150,528 JSON numbers in, beside what the parser alone takes for the same body in this process."""
    node = through.pid_of("node")
    shape = Shape(max(int(100 * scale), 5), 1, 1)
    flat = LARGE.reshape(-1)
    # As a client writes floats that knows they are FP32, and as one that widens them to doubles first.
    writers = {"9 digits": orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY), "17 digits": json.dumps(flat.tolist()).encode()}
    for name, numbers in writers.items():
        target = targets.v2_json_in_target(f"v2 JSON in ({name}), binary out", through.edge, LARGE, numbers)
        check(target)
        costs_ms, parser_ms = [], []
        for _ in range(rounds):
            before = cpu_s(node)
            run_round(target, shape, Result())
            costs_ms.append((cpu_s(node) - before) / shape.requests * 1e3)
            parser_ms.append(_parser_ms(target.body))
        cost, alone = statistics.median(costs_ms), statistics.median(parser_ms)
        console.print(
            f"{target.name}, 150,528 numbers, {len(target.body) / 1e6:.1f} MB: {cost:.1f} ms of node CPU a request (expected ≤ 4.5, set "
            f"where simdjson alone took 2.0 for 9 digits; here it takes {alone:.1f}: ratio {cost / alone:.1f}, expected ≤ 2.25)"
        )


def _parser_ms(body: bytes) -> float:
    """CPU of simdjson alone, from text to FP32, in milliseconds; the best of three."""
    parser, costs = simdjson.Parser(), []
    for _ in range(3):
        before = time.process_time()
        document: Any = parser.parse(body)
        np.frombuffer(document["inputs"][0]["data"].as_buffer(of_type="d"), np.float64).astype(np.float32)
        costs.append(time.process_time() - before)
        del document
    return min(costs) * 1e3


def _print_memory(through: Gateway) -> None:
    total = sum(map(pss_bytes, process_tree(through.pid)))
    console.print(f"memory after this run (PSS): all {total / 1e6:.0f} MB, node {pss_bytes(through.pid_of('node')) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
