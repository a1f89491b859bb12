"""Every model, ahead of time for four GPUs by TensorRT-RTX, in each precision, by the command that users type. No plan is executed.

``make test-build`` runs it; it is not part of ``make test``, which builds one small model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, mismatches, read_metadata
from tests.build_matrix.cases import CASES, Case
from tests.build_matrix.samples import saved
from tests.build_matrix.table import Cell, Table
from tests.support.programs import ROOT

TARGETS = ("8.0", "8.6", "8.9", "12.0")
PRECISIONS = ("fp32", "fp16", "int8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_model_is_built_ahead_of_time_for_four_gpus(case: Case, precision: str, tmp_path: Path, table: Table) -> None:
    model = case.file(tmp_path)
    version = tmp_path / "repository" / case.name / "1"
    command = ["build", str(model), "-o", str(version), "--target", ",".join(TARGETS), "--precision", precision, "--json"]
    for shapes in case.shapes:
        command += ["--shapes", shapes]
    if precision == "int8":
        command += ["--data", str(saved(case.samples(), tmp_path / "samples.npz"))]
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "tensorgate", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    metadata = read_metadata(version / "model.plan")
    check(case, precision, version, metadata)
    assert json.loads(done.stdout)["plan_sha256"] == metadata.plan_sha256
    table.add(case.title, precision, Cell(seconds, metadata.plan_bytes, metadata.peak_host_bytes))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [case for case in CASES if case.has_products], ids=lambda case: case.name)
def test_int8_weights_need_no_data_and_take_less_room(case: Case, tmp_path: Path) -> None:
    model = case.file(tmp_path)
    sizes = []
    for precision in ("fp32", "int8-weights"):
        version = tmp_path / precision / "1"
        command = ["build", str(model), "-o", str(version), "--target", "8.9", "--precision", precision]
        for shapes in case.shapes:
            command += ["--shapes", shapes]
        done = subprocess.run([sys.executable, "-m", "tensorgate", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        sizes.append(read_metadata(version / "model.plan").plan_bytes)
    assert read_metadata(version / "model.plan").precision == "int8"
    assert sizes[1] < sizes[0]


def check(case: Case, precision: str, version: Path, metadata: PlanMetadata) -> None:
    """What a plan of this case must say of itself."""
    plan = version / "model.plan"
    assert sorted(path.name for path in version.iterdir()) == ["model.plan", "model.plan.json"]
    assert not mismatches(plan, metadata)
    assert plan.read_bytes()[:4] == b"vtrt"
    assert (metadata.precision, metadata.targets, metadata.flavour) == (precision, TARGETS, "tensorrt_rtx")
    found = tuple((tensor.name, tensor.datatype, tensor.shape) for tensor in metadata.inputs)
    assert found[: len(case.inputs)] == case.inputs
    assert len(metadata.profiles) == case.profiles
    for profile in metadata.profiles:
        assert set(profile) == {tensor.name for tensor in metadata.inputs}
    assert metadata.weights_bytes
    assert metadata.activation_bytes is not None
    assert bool(metadata.source.converted_sha256) is (precision != "fp32")
    assert (version.parent / "model.toml").is_file()
