"""The README's commands, run as they stand against a server that was started as it says.

Blocks marked ``bash`` or ``python`` are run from the root; only addresses and the virtual environment's folder differ. A line
``# → text`` says what the output must contain.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
START_S = 40.0
"""A cold start on two busy cores; a warm one on a quiet machine takes a few seconds."""


@pytest.fixture(scope="module")
def ports(free_port: Callable[[], int]) -> dict[str, str]:
    """Ports of the README and what stands for them here."""
    return {"8080": str(free_port()), "50051": str(free_port())}


@pytest.fixture(scope="module")
def demo(ports: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What ``make serve`` starts."""
    log = tmp_path_factory.mktemp("readme") / "serve.log"
    command = [sys.executable, "-m", "tensorgate", "serve", "--port", ports["8080"], "--grpc-port", ports["50051"]]
    with log.open("wb") as output, subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output) as process:
        try:
            _await_ready(f"http://127.0.0.1:{ports['8080']}/v2/health/ready", process, log)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            returncode = process.wait(timeout=45)
    assert returncode == 0, log.read_text()


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"the server is not ready\n{log.read_text()}")


def _here(text: str, ports: dict[str, str]) -> str:
    for port, replacement in ports.items():
        text = re.sub(rf"\b{port}\b", replacement, text)
    addresses = f"--url http://127.0.0.1:{ports['8080']} --grpc-address 127.0.0.1:{ports['50051']}"
    return text.replace(".venv/bin/", f"{Path(sys.executable).parent}/").replace("tensorgate infer", f"tensorgate infer {addresses}")


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


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[block.strip().splitlines()[0][:60] for _, block in BLOCKS])
def test_an_example_runs_and_answers(language: str, block: str, ports: dict[str, str]) -> None:
    wanted = re.findall(r"^# → (.*)$", block, re.MULTILINE)
    assert wanted, "an example says what it answers"
    interpreter = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    result = subprocess.run(
        [*interpreter, _here(block, ports)], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 0, result.stderr
    for text in wanted:
        assert text in result.stdout, result.stdout[:2000] + result.stderr
