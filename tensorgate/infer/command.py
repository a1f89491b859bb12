"""Runs ``tensorgate infer``: reads the photograph, calls the door, prints a table or JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

from tensorgate.infer.call import Answer, Call, InferError

DOORS = {
    "grpc": ("grpc_doors", "native"),
    "grpc-web": ("grpc_doors", "web"),
    "v1": ("http_doors", "v1"),
    "v2": ("http_doors", "v2"),
    "v2-binary": ("http_doors", "v2_binary"),
    "upload": ("http_doors", "upload"),
}
"""By the name of the flag: the module, imported only when its door is taken, and the function."""


def photo_from(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        InferError: it is missing, empty or unreadable.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InferError(f"{path}: {error.strerror}") from error
    if not data:
        raise InferError(f"{path}: the file is empty")
    return data


def run(call: Call, door: str, *, as_json: bool) -> None:
    """Calls and prints to stdout.

    Raises:
        InferError: the call failed.
    """
    module, function = DOORS[door]
    enter = getattr(importlib.import_module(f"tensorgate.infer.{module}"), function)
    started = time.perf_counter()
    answer: Answer = enter(call)
    elapsed_ms = (time.perf_counter() - started) * 1000
    if as_json:
        classes = [{"label": item.label, "index": item.index, "score": item.score} for item in answer.classes]
        content = {"door": door, "model": answer.model, "version": answer.version, "elapsed_ms": elapsed_ms, "classes": classes}
        sys.stdout.write(json.dumps(content) + "\n")
        return
    _print_table(call, door, answer, elapsed_ms)


def _print_table(call: Call, door: str, answer: Answer, elapsed_ms: float) -> None:
    from rich.console import Console  # noqa: PLC0415  # Not needed for --json.
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not answer.classes:
        raise InferError(f"model '{answer.model}' names no classes: it has no labels")
    console = Console()
    heading = f"{call.photo_name}: {answer.model} version {answer.version}, door {door}, {elapsed_ms:.0f} ms"
    console.print(heading, markup=False, highlight=False)
    table = Table()
    table.add_column("", justify="right")
    table.add_column("label")
    table.add_column("class", justify="right")
    table.add_column("score", justify="right")
    table.add_column("")
    for place, item in enumerate(answer.classes, start=1):
        bar = "█" * max(0, round(item.score * 20)) if 0 <= item.score <= 1 else ""
        # Text, not markup: a label is the model's word.
        table.add_row(str(place), Text(item.label), str(item.index), f"{item.score:.4f}", bar)
    console.print(table)
