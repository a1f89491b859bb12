"""Regenerates the page's TypeScript from the protos: ``python web_demo/generate.py``; ``npm ci`` must have run.

``web_demo/src/gen`` mirrors ``protos/``. The google.api annotations are left out of what the plugin reads: they tell the edge about
REST, a gRPC-Web client never looks at them, and they would bring the descriptors of google.api and descriptor.proto into the page.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import google.api
import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

WEB_DEMO = Path(__file__).resolve().parent
ROOT = WEB_DEMO.parent
GENERATED = WEB_DEMO / "src" / "gen"
PROTO = "protos/tensorgate/v1/inference.proto"
ANNOTATIONS = "google/api/annotations.proto"


def generate(target: Path) -> None:
    """Writes the TypeScript below ``target``.

    Raises:
        SystemExit: the plugin is not installed, or protoc refused the proto; it has printed why.
    """
    plugin = WEB_DEMO / "node_modules" / ".bin" / "protoc-gen-es"
    if not plugin.exists():
        sys.exit("protoc-gen-es is missing, run `npm ci` in web_demo")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        descriptors = Path(scratch) / "descriptors.binpb"
        include = [f"-I{ROOT}", f"-I{Path(google.api.__path__[0]).parent.parent}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
        _run(*include, f"--descriptor_set_out={descriptors}", "--include_source_info", PROTO)
        descriptors.write_bytes(_without_annotations(descriptors.read_bytes()))
        _run(f"--descriptor_set_in={descriptors}", f"--plugin=protoc-gen-es={plugin}", f"--es_out={target}", "--es_opt=target=ts", PROTO)


def _run(*arguments: str) -> None:
    if protoc.main(["protoc", *arguments]) != 0:
        sys.exit("protoc failed")


def _without_annotations(data: bytes) -> bytes:
    files = FileDescriptorSet.FromString(data)
    for file in files.file:
        _strip(file)
    return files.SerializeToString()


def _strip(file: FileDescriptorProto) -> None:
    kept = [name for name in file.dependency if name != ANNOTATIONS]
    del file.dependency[:]
    file.dependency.extend(kept)
    for service in file.service:
        for method in service.method:
            method.ClearField("options")


if __name__ == "__main__":
    generate(GENERATED)
