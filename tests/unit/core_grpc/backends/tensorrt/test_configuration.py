"""The builder's configuration on the real object of TensorRT-RTX, whose bindings have the names of full TensorRT 11.

Full TensorRT itself was never here. Where a test needs it, RTX's module stands in under its flavour, and says so by the name ``FAKE_FULL``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_grpc.backends.tensorrt.bindings import Bindings, load_bindings, logger_of
from core_grpc.backends.tensorrt.build.builder import build_plan
from core_grpc.backends.tensorrt.build.configuration import configured
from core_grpc.backends.tensorrt.build.fusions import fused_in
from core_grpc.backends.tensorrt.build.options import HARDWARE_LEVELS, BuildRequest
from core_grpc.backends.tensorrt.build.progress import SilentObserver
from core_grpc.backends.tensorrt.description import described
from core_grpc.backends.tensorrt.machine import Machine
from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, read_metadata
from tests.support.programs import ROOT

DIGITS = ROOT / "tests" / "data" / "precision" / "digits_cnn.onnx"


def configuration(**options: Any) -> tuple[Any, Any]:
    """The module, and its configuration for these options."""
    rtx = load_bindings("tensorrt_rtx")
    builder = rtx.module.Builder(logger_of(rtx))
    return rtx.module, configured(rtx, builder, BuildRequest(DIGITS, Path("model.plan"), **options))


def test_numbers_arrive() -> None:
    trt, config = configuration(workspace_bytes=123 << 20, optimization_level=5)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 123 << 20
    assert config.builder_optimization_level == 5
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED


@pytest.mark.parametrize(
    ("option", "flag"), [("refit", "REFIT"), ("strip_weights", "STRIP_PLAN"), ("version_compatible", "VERSION_COMPATIBLE")]
)
def test_a_flag_is_set_where_it_is_asked_for(option: str, flag: str) -> None:
    trt, config = configuration(**{option: True})
    assert config.get_flag(getattr(trt.BuilderFlag, flag))
    trt, config = configuration()
    assert not config.get_flag(getattr(trt.BuilderFlag, flag))


@pytest.mark.parametrize("level", HARDWARE_LEVELS)
def test_a_level_of_hardware_compatibility_has_tensorrts_name(level: str) -> None:
    trt, _ = configuration(hardware_compatibility=level)  # RTX takes it and forgets it: it has targets.
    assert HARDWARE_LEVELS[level] in trt.HardwareCompatibilityLevel.__members__


def test_targets_arrive_in_order() -> None:
    trt, config = configuration(targets=("8.9", "12.0"))
    assert [config.get_compute_capability(index) for index in range(config.num_compute_capabilities)] == [
        trt.ComputeCapability.SM89,
        trt.ComputeCapability.SM120,
    ]


@pytest.fixture
def fake_full(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bindings]:
    """TensorRT-RTX under the name of full TensorRT."""
    monkeypatch.setitem(sys.modules, "tensorrt", load_bindings("tensorrt_rtx").module)
    load_bindings.cache_clear()
    yield load_bindings("tensorrt")
    load_bindings.cache_clear()


def built(bindings: Bindings, plan: Path, **options: Any) -> PlanMetadata:
    """A build as full TensorRT gets it."""
    return build_plan(bindings, BuildRequest(DIGITS, plan, **options), Machine(1, "FAKE_FULL"), SilentObserver())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_timing_cache_is_kept_and_read_again(fake_full: Bindings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "caches" / "digits.cache"
    assert built(fake_full, tmp_path / "1" / "model.plan", timing_cache=cache).device == "FAKE_FULL"
    first = cache.read_bytes()
    assert first
    config_type = load_bindings("tensorrt_rtx").module.IBuilderConfig
    given: list[bytes] = []
    original = config_type.create_timing_cache

    def spied(config: Any, content: bytes) -> Any:
        given.append(content)
        return original(config, content)

    monkeypatch.setattr(config_type, "create_timing_cache", spied)
    built(fake_full, tmp_path / "2" / "model.plan", timing_cache=cache)
    assert given == [first]
    cache.write_bytes(b"none")
    built(fake_full, tmp_path / "3" / "model.plan", timing_cache=cache)
    assert cache.read_bytes() != b"none"
    assert [path.name for path in cache.parent.iterdir()] == ["digits.cache"]
    # Without a name it has its place below the user's caches, by version.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    built(fake_full, tmp_path / "4" / "model.plan")
    assert (tmp_path / "user" / "tensorgate" / f"timing-tensorrt-{fake_full.version}.cache").is_file()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_was_fused_is_told_where_a_gpu_can_read_the_plan(fake_full: Bindings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine and its inspector are fakes: no GPU here can read a plan. Their methods are those of the real bindings."""
    trt = fake_full.module
    said = json.dumps(
        {
            "Layers": [
                {"Name": "conv1 + relu1", "LayerType": "conv"},
                {"Name": "__myl_Fused", "Metadata": "[ONNX Layer: node_a]\x1e[ONNX Layer: node_b]"},
                {"Name": "head", "Metadata": "[ONNX Layer: node_c]"},
            ]
        }
    )

    class FakeInspector:
        def get_engine_information(self, layout: Any) -> str:
            assert layout == trt.LayerInformationFormat.JSON
            return said

    class FakeEngine:
        num_layers = 3

        def create_engine_inspector(self) -> FakeInspector:
            return FakeInspector()

    class FakeRuntime:
        def __init__(self, _logger: Any) -> None:
            pass

        def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine:
            assert plan[:4] == b"vtrt"
            return FakeEngine()

    for fake, real in ((FakeInspector, trt.EngineInspector), (FakeEngine, trt.ICudaEngine), (FakeRuntime, trt.Runtime)):
        assert {name for name in vars(fake) if not name.startswith("_")} <= set(dir(real))
    monkeypatch.setattr(trt, "Runtime", FakeRuntime)
    metadata = built(fake_full, tmp_path / "model.plan")
    assert (metadata.engine_layers, metadata.fused_layers) == (3, ("conv1 + relu1", "__myl_Fused"))
    assert "  fused       to 3 layers, 2 of which were several" in described(metadata)
    assert read_metadata(tmp_path / "model.plan") == metadata


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_plan_that_the_gpu_cannot_read_is_written_without_its_fusions(fake_full: Bindings, tmp_path: Path) -> None:
    metadata = built(fake_full, tmp_path / "model.plan")  # The machine is said to have a GPU, and has none.
    assert metadata.engine_layers is None
    assert not any(line.startswith("  fused") for line in described(metadata))


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"Layers": null}', '{"Layers": ["a", {"Type": 1}]}'])
def test_an_inspector_that_says_something_else_tells_of_no_fusions(text: str) -> None:
    assert fused_in(text) == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_timing_cache_that_cannot_be_written_is_no_failure(fake_full: Bindings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    built(fake_full, tmp_path / "1" / "model.plan", timing_cache=tmp_path / "file" / "digits.cache")
    assert (tmp_path / "1" / "model.plan").is_file()
    assert "the timing cache was not kept" in read_metadata(tmp_path / "1" / "model.plan").warnings[-1]
