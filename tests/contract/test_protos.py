"""The contract's own rules: lint, comments, and one URL for one RPC."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google.api
import grpc_tools
import pytest
import yaml
from google.api import annotations_pb2, http_pb2
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[2]
BUF = Path(sys.executable).with_name("buf")


@pytest.fixture(scope="session")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contract as a file descriptor set with its comments: what buf calls an image."""
    target = tmp_path_factory.mktemp("image") / "image.binpb"
    includes = [ROOT, Path(google.api.__path__[0]).parent.parent, Path(grpc_tools.__file__).parent / "_proto"]
    protos = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "protos").rglob("*.proto"))]
    options = ["--include_imports", "--include_source_info", f"--descriptor_set_out={target}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{path}" for path in includes), *options, *protos]
    subprocess.run(command, cwd=ROOT, check=True)
    return target


@pytest.fixture(scope="session")
def files(image_file: Path) -> list[descriptor_pb2.FileDescriptorProto]:
    """Our own files of the image."""
    image = descriptor_pb2.FileDescriptorSet.FromString(image_file.read_bytes())
    return [file for file in image.file if file.name.startswith("protos/")]


def _lint(image_file: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    command = [str(BUF), "lint", str(image_file), "--error-format=json", "--config", json.dumps(config)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 100), result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="session")
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "protos/buf.yaml").read_text())
    return loaded


def test_lint_passes(image_file: Path, config: dict[str, Any]) -> None:
    findings = _lint(image_file, config)
    assert not findings, "\n".join(f"{f['path']}:{f['start_line']}: {f['type']}: {f['message']}" for f in findings)


def test_every_lint_exemption_is_needed(image_file: Path, config: dict[str, Any]) -> None:
    bare = {**config, "lint": {"use": config["lint"]["use"]}}
    found = {(finding["type"], finding["path"]) for finding in _lint(image_file, bare)}
    exemptions = [(rule, "protos/") for rule in config["lint"]["except"]]
    exemptions += [(rule, path) for rule, paths in config["lint"]["ignore_only"].items() for path in paths]
    idle = [(rule, path) for rule, path in exemptions if not any(kind == rule and where.startswith(path) for kind, where in found)]
    assert not idle, f"exemptions of buf.yaml that nothing needs: {idle}"


def _http_rules(files: list[descriptor_pb2.FileDescriptorProto]) -> Iterator[tuple[str, str, str]]:
    """(HTTP method, path template, RPC) of every binding."""
    for file in files:
        for service in file.service:
            for method in service.method:
                rpc = f"{file.package}.{service.name}/{method.name}"
                rule = method.options.Extensions[annotations_pb2.http]
                for binding in (rule, *rule.additional_bindings):
                    verb = binding.WhichOneof("pattern")
                    if verb:
                        yield (*_verb_and_path(binding, verb), rpc)


def _verb_and_path(binding: http_pb2.HttpRule, verb: str) -> tuple[str, str]:
    if verb == "custom":
        return binding.custom.kind.upper(), binding.custom.path
    return verb.upper(), str(getattr(binding, verb))


def _clashes(rules: Iterator[tuple[str, str, str]]) -> list[str]:
    """Bindings that no router can tell apart. Names of path variables do not matter: `/a/{x}` and `/a/{y}` are one path."""
    owners: dict[tuple[str, str], str] = {}
    clashes = []
    for verb, path, rpc in rules:
        key = (verb, re.sub(r"\{[^}]*\}", "*", path))
        if key in owners:
            clashes.append(f"{verb} {path}: {owners[key]} and {rpc}")
        owners[key] = rpc
    return clashes


def test_no_two_rpcs_share_a_url(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    # Envoy's transcoder takes such a contract without a word and serves only one of the two.
    assert not _clashes(_http_rules(files))


def test_the_url_check_sees_a_clash() -> None:
    rules = [("GET", "/v1/{a}", "X/A"), ("POST", "/v1/{a}", "X/B"), ("GET", "/v1/{b=*}", "X/C")]
    assert _clashes(iter(rules)) == ["GET /v1/{b=*}: X/A and X/C"]


def test_the_rest_doors_have_urls(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    urls = {(verb, path) for verb, path, _ in _http_rules(files)}
    assert {
        ("GET", "/v2"),
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/{model}"),
        ("GET", "/v2/models/{model}/versions/{version}/ready"),
        ("POST", "/v2/models/{model}/infer"),
        ("POST", "/v2/models/{model}/versions/{version}/infer"),
        ("POST", "/v1/models/{model}:predict"),
        ("POST", "/v1/models/{model}/versions/{version}:predict"),
    } <= urls


# Field numbers in FileDescriptorProto and below: how source info addresses a declaration.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD, _NESTED, _NESTED_ENUM, _VALUE, _METHOD = 2, 3, 4, 2, 2


def _declarations(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """(source path, name) of every service, RPC, message, field, enum and enum value."""
    for i, service in enumerate(file.service):
        yield (_SERVICE, i), service.name
        yield from (((_SERVICE, i, _METHOD, j), f"{service.name}.{method.name}") for j, method in enumerate(service.method))
    for i, message in enumerate(file.message_type):
        yield from _in_message((_MESSAGE, i), message, "")
    for i, enum in enumerate(file.enum_type):
        yield from _in_enum((_ENUM, i), enum, "")


def _in_message(path: tuple[int, ...], message: descriptor_pb2.DescriptorProto, prefix: str) -> Iterator[tuple[tuple[int, ...], str]]:
    if message.options.map_entry:
        return
    name = prefix + message.name
    yield path, name
    yield from (((*path, _FIELD, i), f"{name}.{field.name}") for i, field in enumerate(message.field))
    for i, nested in enumerate(message.nested_type):
        yield from _in_message((*path, _NESTED, i), nested, name + ".")
    for i, enum in enumerate(message.enum_type):
        yield from _in_enum((*path, _NESTED_ENUM, i), enum, name + ".")


def _in_enum(path: tuple[int, ...], enum: descriptor_pb2.EnumDescriptorProto, prefix: str) -> Iterator[tuple[tuple[int, ...], str]]:
    name = prefix + enum.name
    yield path, name
    yield from (((*path, _VALUE, i), f"{name}.{value.name}") for i, value in enumerate(enum.value))


def test_every_declaration_has_a_comment(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    bare, seen = [], 0
    for file in files:
        comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
        for path, name in _declarations(file):
            seen += 1
            if not comments.get(path):
                bare.append(f"{file.name}: {name}")
    assert not bare, "\n".join(bare)
    assert seen > 300, f"only {seen} declarations were looked at"
