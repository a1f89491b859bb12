"""Regenerates everything that is made from the protos: ``python protos/generate.py``.

Stubs (``*_pb2.py``, ``*_pb2.pyi``, ``*_pb2_grpc.py``) lie beside their proto and import as ``protos.<package>.<file>_pb2``, because the
root of all imports is the repository. The descriptor set ``protos/descriptors.binpb`` is what the edge's transcoder reads.
``--check`` generates into a scratch folder and fails if anything that is committed differs.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import google.api
import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTORS = "protos/descriptors.binpb"


def proto_files() -> list[str]:
    """Every proto of the project, relative to the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))


def generate(target: Path) -> None:
    """Writes stubs and descriptor set below ``target``.

    Raises:
        SystemExit: protoc refused a proto; it has printed why.
    """
    (target / "protos").mkdir(parents=True, exist_ok=True)
    include = [f"-I{ROOT}", f"-I{Path(google.api.__path__[0]).parent.parent}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    stubs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    # The descriptor set carries google.rpc's error details too, so that the transcoder can print them as JSON.
    descriptors = [f"--descriptor_set_out={target / DESCRIPTORS}", "--include_imports", "google/rpc/error_details.proto"]
    for arguments in (stubs, descriptors):
        if protoc.main(["protoc", *include, *arguments, *proto_files()]) != 0:
            sys.exit("protoc failed")


def generated_files(target: Path) -> list[str]:
    """What ``generate`` made below ``target``, relative to it."""
    patterns = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*.binpb")
    return sorted(str(p.relative_to(target)) for pattern in patterns for p in (target / "protos").rglob(pattern))


def check() -> list[str]:
    """The committed files that differ from what the protos give now."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = generated_files(Path(scratch))
        stale = [name for name in fresh if not (ROOT / name).exists() or not filecmp.cmp(ROOT / name, Path(scratch) / name, shallow=False)]
    return stale + [name for name in generated_files(ROOT) if name not in fresh]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a committed file is stale, change nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    if stale := check():
        sys.exit("stale generated files, run `python protos/generate.py`:\n  " + "\n  ".join(stale))


if __name__ == "__main__":
    main()
