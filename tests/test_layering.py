"""Who may import whom: the rules of core_grpc/ARCHITECTURE.md as data, held against every import statement of the sources."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core_grpc", "rest_facade", "tensorgate", "protos")

LEAVES = frozenset({"errors", "types", "settings", "lifecycle", "observability", "version", "python_model", "access", "api_keys"})
"""Parts that every part of the core may import."""

PARTS: Mapping[str, frozenset[str]] = {
    # Part of the core: the other parts it may import, beside the leaves. Read it from the outside in.
    "__main__": frozenset({"server", "transports", "process_control"}),
    "server": frozenset({"transports", "rpc", "data_plane", "models", "process_control", "shared_memory"}),
    "process_control": frozenset(),
    "transports": frozenset({"rpc"}),
    "rpc": frozenset({"data_plane", "request_checks", "processing", "shared_memory"}),
    "shared_memory": frozenset(),
    "data_plane": frozenset({"models", "request_checks", "processing"}),
    "request_checks": frozenset(),
    "models": frozenset({"scheduler", "backends", "pipelines", "processing", "request_checks"}),
    "pipelines": frozenset({"scheduler", "backends", "processing"}),
    "scheduler": frozenset(),
    "backends": frozenset(),
    "precision": frozenset({"backends", "processing", "models"}),
    "processing": frozenset({"request_checks"}),
}

HOSTED: Mapping[str, str] = {
    # Modules that are a program's first module although they lie in a part: they may import what the named part may.
    "core_grpc.transports.asgi_app": "__main__",
}

EXCEPTIONS: Mapping[tuple[str, str], str] = {
    # (importer, imported): why this one name may cross
    ("core_grpc.rpc.tensorgate_codec", "core_grpc.models.registry.ModelEntry"): "the data plane lists models as these values",
    ("core_grpc.rpc.model_config_codec", "core_grpc.models.model_config.ModelConfig"): "the data plane hands out these values",
    ("core_grpc.rpc.model_config_codec", "core_grpc.models.model_config.OutputConfig"): "part of ModelConfig",
    ("core_grpc.rpc.model_config_codec", "core_grpc.pipelines.step.PIPELINE"): "the backend that ModelConfig names",
    ("core_grpc.rpc.model_config_codec", "core_grpc.pipelines.step.Step"): "part of ModelConfig",
    ("core_grpc.rpc.batching_codec", "core_grpc.models.model_config.ModelConfig"): "the data plane hands out these values",
    ("core_grpc.rpc.batching_codec", "core_grpc.scheduler.policy.QueuePolicy"): "part of ModelConfig",
    ("core_grpc.rpc.batching_codec", "core_grpc.scheduler.policy.TimeoutAction"): "part of ModelConfig",
    ("core_grpc.rpc.override_codec", "core_grpc.models.overrides.LoadOverride"): "the data plane takes these values",
    ("core_grpc.rpc.override_codec", "core_grpc.models.overrides.TensorOverride"): "part of LoadOverride",
    ("core_grpc.rpc.override_codec", "core_grpc.models.version_policy.VersionPolicy"): "part of LoadOverride",
    ("core_grpc.rpc.override_codec", "core_grpc.models.version_policy.ALL"): "part of LoadOverride",
    ("core_grpc.rpc.override_codec", "core_grpc.models.version_policy.MAX_LATEST"): "the bound of VersionPolicy's field",
    ("core_grpc.rpc.override_codec", "core_grpc.models.version_policy.specific"): "makes a VersionPolicy",
    ("core_grpc.rpc.override_codec", "core_grpc.models.instance_groups.InstanceGroup"): "part of LoadOverride",
    ("core_grpc.rpc.instance_group_codec", "core_grpc.models.instance_groups.InstanceGroup"): "part of ModelConfig and LoadOverride",
    ("core_grpc.rpc.instance_group_codec", "core_grpc.models.instance_groups.InstanceKind"): "part of InstanceGroup",
    ("core_grpc.rpc.instance_group_codec", "core_grpc.scheduler.resources.ResourceNeed"): "part of InstanceGroup",
    ("core_grpc.rpc.sequence_batching_codec", "core_grpc.models.model_config.ModelConfig"): "the data plane hands out these values",
    ("core_grpc.rpc.sequence_batching_codec", "core_grpc.models.sequence_config.SequenceConfig"): "part of ModelConfig",
    ("core_grpc.rpc.sequence_batching_codec", "core_grpc.models.sequence_config.StateConfig"): "part of SequenceConfig",
    ("core_grpc.rpc.sequence_batching_codec", "core_grpc.scheduler.live_sequences.Strategy"): "part of SequenceConfig",
    ("core_grpc.rpc.statistics_codec", "core_grpc.models.statistics.ModelStatistics"): "the data plane hands out these counters",
    ("core_grpc.rpc.statistics_codec", "core_grpc.models.statistics.Duration"): "part of ModelStatistics",
}

CALLERS_AND_FACADE = ("rest_facade", "tensorgate.infer", "tensorgate.client")

FENCES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    # (packages, the only places that may import them, why)
    (
        ("grpc", "grpc_health", "grpc_reflection", "grpc_status"),
        ("core_grpc.server", "core_grpc.rpc", "core_grpc.transports", "rest_facade", "tensorgate.infer", "tensorgate.client"),
        "what serves and what calls may know gRPC; what a model does may not depend on how it was asked",
    ),
    (
        ("protos", "google"),
        (
            "core_grpc.server",
            "core_grpc.rpc",
            "core_grpc.transports",
            "core_grpc.models.triton_config",
            "core_grpc.backends.tensorrt.build.onnx_model",
            *CALLERS_AND_FACADE,
            "protos",
        ),
        "protobuf stops at the codec: the core's own types are core_grpc/types.py. Messages in files stop where these are read",
    ),
    (
        ("onnxruntime",),
        ("core_grpc.backends.onnxruntime", "core_grpc.precision"),
        "an engine is imported by its backend only, when a model needs it; the precision tools convert and compare with it",
    ),
    (
        ("tensorrt", "tensorrt_lean", "tensorrt_lean_bindings", "tensorrt_rtx"),
        ("core_grpc.backends.tensorrt",),
        "an engine is imported by its backend only",
    ),
    (("cuda",), ("core_grpc.backends.cuda", "core_grpc.shared_memory.cuda"), "CUDA is imported where memory on a GPU is used"),
    (("onnx",), ("core_grpc.backends.tensorrt", "core_grpc.precision"), "models are changed by the tools that build engines only"),
    (
        ("fastapi", "starlette", "pydantic", "pydantic_settings", "uvicorn"),
        ("rest_facade",),
        "the facade is a process of its own; nobody else pays for its libraries",
    ),
    (("prometheus_client",), ("core_grpc.observability",), "every series is declared in one place"),
    (("PIL",), ("core_grpc.processing",), "images are decoded by declared preprocessing and nowhere else"),
    (("simdjson", "orjson"), ("core_grpc.rpc", "rest_facade"), "JSON stops at the codec"),
    (("core_grpc",), ("core_grpc", "tensorgate"), "the facade and the clients reach the core over the wire"),
    (("rest_facade",), ("rest_facade",), "the facade is started as a process"),
    (("tensorgate",), ("tensorgate",), "nobody imports the command line"),
)

BANNED: tuple[tuple[str, str, str], ...] = (
    # (module, what it may not import, why)
    ("core_grpc.scheduler.dynamic_batcher", "asyncio", "the batcher is pure: it is given the time and returns decisions"),
    ("core_grpc.scheduler.dynamic_batcher", "time", "the batcher is pure: it is given the time and returns decisions"),
    ("core_grpc.scheduler.sequence_batcher", "asyncio", "the batcher is pure: it is given the time and returns decisions"),
    ("core_grpc.scheduler.sequence_batcher", "time", "the batcher is pure: it is given the time and returns decisions"),
    ("core_grpc.scheduler.live_sequences", "asyncio", "the batcher's values are pure as well"),
    ("core_grpc.scheduler.policy", "asyncio", "policies are pure"),
    ("core_grpc.scheduler.fair_share", "asyncio", "it is given the time and returns decisions"),
    ("core_grpc.scheduler.fair_share", "time", "it is given the time and returns decisions"),
    ("core_grpc.scheduler.resources", "asyncio", "it returns decisions"),
    ("core_grpc.scheduler.resources", "time", "turns are counted, not timed"),
    ("core_grpc.scheduler.cache", "asyncio", "the cache's order and bounds are pure"),
    ("core_grpc.scheduler.cache", "time", "the cache's order and bounds are pure"),
    ("core_grpc.scheduler.batch", "asyncio", "stacking runs on an instance's thread"),
    ("core_grpc.backends.onnxruntime", "asyncio", "backends are synchronous; the instance worker gives them their thread"),
    ("core_grpc.backends.cuda", "asyncio", "backends are synchronous; the instance worker gives them their thread"),
    ("core_grpc.backends.tensorrt", "asyncio", "backends are synchronous; the instance worker gives them their thread"),
)

TENSORGATE_MAY = (
    "core_grpc.access",
    "core_grpc.api_keys",
    "core_grpc.settings",
    "core_grpc.version",
    "core_grpc.transports.envoy_host",
    "core_grpc.observability.usage_store",
)
"""What the command line may import of the core: it must start in an instant, without numpy or gRPC."""

CALLERS = ("tensorgate.infer", "tensorgate.client")
"""The parts of the command line that call a server. The others run in the supervisor's process, which stays beside the servers."""
HEAVY = frozenset({"numpy", "grpc", "google", "protos", "httpx", "rich", "fastapi", "pydantic", "onnxruntime", "PIL"})

VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|manager|misc)(_|$)")
LONGEST_MODULE = 400
LONGEST_FUNCTION_P90 = 30


@dataclass(frozen=True)
class Import:
    """One imported name, as ``importer`` sees it."""

    importer: str
    imported: str
    line: int
    at_load: bool
    """Outside of functions: done when the importer is imported."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(importer: str, tree: ast.AST, at_load: bool = True) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(importer, alias.name, node.lineno, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno}: imports are absolute"
            # `from a import b` may mean the module a.b; the rules that need to tell look at both.
            yield from (Import(importer, f"{node.module}.{alias.name}", node.lineno, at_load) for alias in node.names)
        else:
            inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from imports_of(importer, node, at_load and not inside_function and not for_types)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def part_of(module: str) -> str:
    """The part of the core: the first name below core_grpc."""
    return module.split(".")[1] if "." in module else "__init__"


def violations(found: Import) -> Iterator[str]:
    where = f"{found.importer}:{found.line} imports {found.imported}"
    for packages, places, reason in FENCES:
        if any(within(found.imported, package) for package in packages) and not any(within(found.importer, place) for place in places):
            yield f"{where}: only {', '.join(places)} may ({reason})"
    for module, banned, reason in BANNED:
        if within(found.importer, module) and within(found.imported, banned):
            yield f"{where}: {reason}"
    if within(found.importer, "core_grpc") and within(found.imported, "core_grpc"):
        yield from _core_violation(found, where)
    from_command_line = within(found.importer, "tensorgate") and within(found.imported, "core_grpc") and found.at_load
    if from_command_line and not any(within(found.imported, name) for name in TENSORGATE_MAY):
        yield f"{where}: of the core the command line may load {', '.join(TENSORGATE_MAY)} only; start the rest as a process"
    is_supervising = within(found.importer, "tensorgate") and not any(within(found.importer, name) for name in CALLERS)
    if found.at_load and is_supervising and found.imported.split(".")[0] in HEAVY:
        yield f"{where}: the supervisor's process stays small; import it in the function that needs it"


def _core_violation(found: Import, where: str) -> Iterator[str]:
    importer = HOSTED.get(found.importer, part_of(found.importer))
    imported = part_of(found.imported)
    if imported in LEAVES or imported == part_of(found.importer) or (found.importer, found.imported) in EXCEPTIONS:
        return
    if importer in LEAVES:
        yield f"{where}: {importer} is a leaf; leaves import no other part of the core"
    elif imported not in PARTS.get(importer, frozenset()):
        yield f"{where}: {importer} may import {', '.join(sorted(PARTS.get(importer, ()))) or 'no other part'} and the leaves"


def sources() -> dict[str, tuple[Path, ast.Module]]:
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    written = (path for path in paths if not re.search(r"_pb2(_grpc)?\.py$", path.name) and "node_modules" not in path.parts)
    return {module_name(path): (path, ast.parse(path.read_text(encoding="utf-8"))) for path in written}


SOURCES = sources()


def test_imports_follow_the_rules() -> None:
    broken = [text for name, (_, tree) in SOURCES.items() for found in imports_of(name, tree) for text in violations(found)]
    assert not broken, "\n".join(broken)


def test_every_exception_is_needed() -> None:
    used = {(name, found.imported) for name, (_, tree) in SOURCES.items() for found in imports_of(name, tree)}
    assert EXCEPTIONS.keys() <= used


def test_every_part_of_the_core_is_in_the_rules() -> None:
    parts = {part_of(name) for name in SOURCES if within(name, "core_grpc")} - {"__init__"}
    assert parts <= PARTS.keys() | LEAVES, "a new part of the core needs its row in PARTS"


def test_the_command_line_loads_nothing_heavy() -> None:
    modules = {name for name in SOURCES if within(name, "tensorgate") and not any(within(name, caller) for caller in CALLERS)}
    code = f"import sys, {', '.join(sorted(modules - {'tensorgate.__main__'}))}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("core_grpc.scheduler.dispatcher", "from core_grpc.backends.base import Backend"),
        ("core_grpc.backends.identity", "import core_grpc.scheduler.batch"),
        ("core_grpc.models.registry", "from core_grpc import data_plane"),
        ("core_grpc.rpc.codec", "from core_grpc.models.registry import Registry"),
        ("core_grpc.rpc.codec", "from core_grpc.transports.grpcio import serve"),
        ("core_grpc.types", "from core_grpc.rpc import codec"),
        ("core_grpc.models.model", "import grpc"),
        ("core_grpc.data_plane", "from protos.inference import grpc_service_pb2"),
        ("core_grpc.models.model", "def load():\n    import onnxruntime"),
        ("core_grpc.rpc.codec", "import pydantic"),
        ("core_grpc.scheduler.dynamic_batcher", "import asyncio"),
        ("rest_facade.app", "from core_grpc.errors import NotFound"),
        ("rest_facade.app", "import tensorgate.cli"),
        ("tensorgate.cli", "from core_grpc.server import serve"),
        ("tensorgate.cli", "import numpy as np"),
        ("tensorgate.cli", "if True:\n    from protos.inference import grpc_service_pb2"),
    ],
)
def test_a_wrong_import_is_seen(importer: str, statement: str) -> None:
    found = list(imports_of(importer, ast.parse(statement)))
    assert [text for item in found for text in violations(item)]


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("core_grpc.models.model", "from core_grpc.scheduler.dispatcher import Dispatcher"),
        ("core_grpc.transports.asgi_app", "from core_grpc.server import Server"),
        ("core_grpc.backends.onnxruntime.backend", "import onnxruntime as ort"),
        ("tensorgate.cli", "def serve():\n    import httpx"),
        ("tensorgate.edge", "from core_grpc.settings import load_settings"),
    ],
)
def test_a_right_import_passes(importer: str, statement: str) -> None:
    found = list(imports_of(importer, ast.parse(statement)))
    assert found
    assert not [text for item in found for text in violations(item)]


def test_modules_are_named_after_what_they_hold() -> None:
    vague = [name for name in SOURCES if VAGUE.search(name.rsplit(".", 1)[-1])]
    assert not vague, f"name the thing, not the drawer: {vague}"


def test_modules_explain_themselves_and_are_short() -> None:
    complaints = []
    for name, (path, tree) in SOURCES.items():
        text = ast.get_docstring(tree) or ""
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines and not text:
            complaints.append(f"{name}: no docstring")
        if lines > LONGEST_MODULE and f"{LONGEST_MODULE} lines" not in text:
            complaints.append(f"{name}: {lines} lines; split it, or say in its docstring why it is longer than {LONGEST_MODULE} lines")
    assert not complaints, "\n".join(complaints)


def test_exports_are_what_the_package_says() -> None:
    for name, (_, tree) in SOURCES.items():
        listed = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and _assigns(node, "__all__")]
        if listed:
            missing = set(listed[0]) - set(dir(importlib.import_module(name)))
            assert not missing, f"{name}.__all__ names what is not there: {missing}"


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def test_most_functions_are_short() -> None:
    lengths = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for _, tree in SOURCES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    p90 = quantiles(lengths, n=10)[-1]
    assert p90 <= LONGEST_FUNCTION_P90, f"90 % of the functions have at most {p90} lines, wanted {LONGEST_FUNCTION_P90}"
