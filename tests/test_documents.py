"""What the pages say exists, exists: links, files, and the names of the architecture's tables."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"node_modules", ".venv", "build", "dist", ".pytest_cache"}
PAGES = sorted(page for page in ROOT.rglob("*.md") if not SKIPPED & set(page.relative_to(ROOT).parts))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| \d \| `(?P<file>[^`]+)` \| `(?P<name>[^`]+)` \|", re.MULTILINE)
FILE = re.compile(r"`((?:core_grpc|rest_facade|tensorgate|protos|envoy|tests|docs|bench)/[\w./-]*\w/?)`")


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    missing = [name for name in FILE.findall(page.read_text(encoding="utf-8")) if not (ROOT / name).exists()]
    assert not missing


def test_pages_that_the_sources_name_exist() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.j2", "*.toml", "*.ts", "*.yml", "Makefile"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = {(file, page) for file in listed.stdout.split() for page in re.findall(r"docs/[\w-]+\.md", _text(ROOT / file))}
    assert len(named) > 3
    assert not [f"{file}: {page}" for file, page in named if not (ROOT / page).exists()]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _defines(source: str, name: str) -> bool:
    """Whether a Python source defines a function, a class, or a method written as ``Class.method``."""
    scope: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        found = [node for node in scope if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part]
        if not found:
            return False
        scope = found[0].body
    return True


STOPS = [match.groups() for match in ROW.finditer((ROOT / "core_grpc/ARCHITECTURE.md").read_text(encoding="utf-8"))]


def test_the_walk_has_nine_stops() -> None:
    assert len(STOPS) == 9


@pytest.mark.parametrize(("file", "name"), STOPS)
def test_every_stop_of_the_walk_exists(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"\brpc {name}\(", source) is not None if file.endswith(".proto") else _defines(source, name)
    assert found, f"{file} has no {name}"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("core_grpc/scheduler/batch.py", "unstack"),
        ("core_grpc/rpc/codec.py", "encode_infer_response"),
    ],
)
def test_names_in_the_text_of_the_walk_exist(file: str, name: str) -> None:
    assert _defines((ROOT / file).read_text(encoding="utf-8"), name)


def test_the_name_check_sees_a_missing_name() -> None:
    source = "class A:\n    async def f(self): ...\n"
    assert _defines(source, "A.f")
    assert not _defines(source, "A.g")
    assert not _defines(source, "f")
