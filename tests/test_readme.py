"""The README's commands, run as they stand against a server that was started as it says.

Blocks marked ``bash`` or ``python`` are run from the root; only addresses and the virtual environment's folder differ. A line
``# → text`` says what the output must contain.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack, running_stack

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def demo(free_port: Callable[[], int]) -> Iterator[Stack]:
    """What ``make serve`` starts."""
    with running_stack(free_port, "auto", None) as stack:
        yield stack


def _here(text: str, stack: Stack) -> str:
    url, grpc_address = stack.addresses.edge_url, stack.addresses.node_grpc
    text = text.replace("http://127.0.0.1:8080", url).replace("127.0.0.1:50051", grpc_address)
    text = text.replace("tensorgate infer", f"tensorgate infer --url {url} --grpc-address {grpc_address}")
    return text.replace(".venv/bin/", f"{Path(sys.executable).parent}/")


def test_the_first_commands_are_serve_and_test() -> None:
    first = re.search(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert first[1].splitlines() == ["make serve", "make test"]
    for target in first[1].split():
        if target != "make":
            subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_there_is_an_example_for_each_of_the_six_doors() -> None:
    section = README.split("## Six doors")[1].split("\n## ")[0]
    assert len(re.findall(r"^```(bash|python)$", section, re.MULTILINE)) == 6


@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[block.strip().splitlines()[0][:60] for _, block in BLOCKS])
def test_an_example_runs_and_answers(language: str, block: str, demo: Stack) -> None:
    wanted = re.findall(r"^# → (.*)$", block, re.MULTILINE)
    assert wanted, "an example says what it answers"
    interpreter = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    result = subprocess.run(
        [*interpreter, _here(block, demo)], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 0, result.stderr
    for text in wanted:
        assert text in result.stdout, result.stdout[:2000] + result.stderr
