"""The committed page: small, self-contained, and what its sources give."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

WEB_DEMO = Path(__file__).resolve().parents[2] / "web_demo"
DIST = WEB_DEMO / "dist"
SCRIPT_LIMIT_BYTES = 60 * 1024


def test_the_scripts_are_small() -> None:
    scripts = list(DIST.rglob("*.js"))
    assert scripts
    assert sum(len(gzip.compress(script.read_bytes())) for script in scripts) <= SCRIPT_LIMIT_BYTES


def test_the_page_asks_nobody_else() -> None:
    page = (DIST / "index.html").read_text()
    assert re.findall(r"""(?:src|href)="([^"]*//[^"]*)""", page) == []
    assert all("url(" not in style.read_text() and "@import" not in style.read_text() for style in DIST.rglob("*.css"))


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (DIST / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page) == []
    assert "Content-Security-Policy" in page


def test_the_lock_file_names_no_registry_but_the_standard_one() -> None:
    lock = json.loads((WEB_DEMO / "package-lock.json").read_text())
    resolved = {package["resolved"] for package in lock["packages"].values() if "resolved" in package}
    assert {address for address in resolved if not address.startswith("https://registry.npmjs.org/")} == set()
    assert all("integrity" in package for name, package in lock["packages"].items() if name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_committed_page_is_what_its_sources_give() -> None:
    done = subprocess.run([sys.executable, WEB_DEMO / "check_dist.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
