"""Schemathesis against ``/openapi.json`` through a real edge: no server error, and no answer that is not described."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.models import write_identity
from tests.support.programs import ROOT
from tests.support.stack import running_stack

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_nothing_undocumented(free_port: Callable[[], int], tmp_path: Path) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    shutil.copytree(ROOT / "tensorgate" / "demo_models" / "efficientnet_lite0", repository / "efficientnet_lite0")
    write_identity(repository, "my_model", {"x": ("FP32", [-1, 4])}, "max_batch_size = 8\n")
    with running_stack(free_port, "grpcio", repository) as stack:
        url = f"{stack.addresses.edge_url}/openapi.json"
        options = ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--seed", "1"]
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", url, *options, "--request-timeout", "10"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout[-8000:]
    assert "Tested: 50" in finished.stdout
