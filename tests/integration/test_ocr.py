"""docs/models/ocr, built as its page says and asked as users ask it: photographed pages in, their text out, by gRPC and by REST."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from protos.inference import grpc_service_pb2 as pb
from tests.support.photographs import INVOICE, PAGE, REMINDER, drawn, photographed, printed_page
from tests.support.programs import ROOT
from tests.support.stack import Stack, running_stack
from tests.support.wire import infer

WHEEL = Path(sys.prefix) / "ocr" / "rapidocr-3.10.0-py3-none-any.whl"
"""Fetched by ``make test``."""


@pytest.fixture(scope="module")
def reader(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("ocr")
    command = [sys.executable, str(ROOT / "docs/models/ocr/build.py"), str(repository), "--wheel", str(WHEEL)]
    subprocess.run(command, check=True, timeout=50)
    with running_stack(free_port, "envoy", repository) as stack:
        yield stack


def request_for(photo: bytes) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="IMAGE", datatype="BYTES", shape=[1])
    return pb.ModelInferRequest(model_name="ocr", inputs=[tensor], raw_input_contents=[len(photo).to_bytes(4, "little") + photo])


def read_by_grpc(stack: Stack, photo: bytes) -> dict[str, Any]:
    """Outputs by name: texts, and arrays of FP32."""
    answer = infer(stack.addresses, "edge", request_for(photo)).infer_response()
    outputs: dict[str, Any] = {}
    for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        outputs[tensor.name] = texts(raw) if tensor.datatype == "BYTES" else np.frombuffer(raw, np.float32).reshape(tensor.shape)
    return outputs


def texts(raw: bytes) -> list[str]:
    found = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


def counted(stack: Stack, model: str) -> dict[str, Any]:
    statistics: dict[str, Any] = stack.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
    return statistics


def assert_read(found: Sequence[str], wanted: Sequence[str]) -> None:
    assert [line for line in found if line in wanted] == list(wanted), found


def test_an_invoice_by_grpc(reader: Stack) -> None:
    outputs = read_by_grpc(reader, photographed(drawn(INVOICE)))
    assert outputs["TEXT"] == list(INVOICE)
    assert outputs["SCORE"].min() > 0.9
    tops = outputs["BOX"][:, 0, 1]
    assert outputs["BOX"].shape == (4, 4, 2)
    assert (np.diff(tops) > 80).all(), "the lines are 130 pixels apart"


def test_a_page_that_stands_on_its_head_by_rest(reader: Stack) -> None:
    photo = photographed(printed_page(), turns=2)
    encoded = base64.b64encode(photo).decode()
    tensor = {"name": "IMAGE", "datatype": "BYTES", "shape": [1], "parameters": {"content_type": "base64"}, "data": [encoded]}
    reply = httpx.post(f"{reader.addresses.edge_url}/v2/models/ocr/infer", json={"inputs": [tensor]}, timeout=30)
    assert reply.status_code == 200, reply.text
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert_read(outputs["TEXT"], PAGE)
    bare = httpx.post(f"{reader.addresses.edge_url}/v2/models/ocr/infer", content=photo, headers={"content-type": "image/jpeg"}, timeout=30)
    assert {output["name"]: output["data"] for output in bare.json()["outputs"]}["TEXT"] == outputs["TEXT"]


def test_pages_that_are_read_at_once_keep_their_own_text(reader: Stack) -> None:
    """And their lines share batches of the recogniser."""
    before = counted(reader, "ocr_recognise")
    sheets = [INVOICE, REMINDER, INVOICE, REMINDER]
    photos = {sheet: photographed(drawn(sheet)) for sheet in set(sheets)}
    with ThreadPoolExecutor(len(sheets)) as callers:
        answers = list(callers.map(lambda sheet: read_by_grpc(reader, photos[sheet])["TEXT"], sheets))
    assert answers == [list(sheet) for sheet in sheets]
    after = counted(reader, "ocr_recognise")
    lines = after["inference_count"] - before["inference_count"]
    assert lines == sum(map(len, sheets))
    assert after["execution_count"] - before["execution_count"] < lines, "lines run in batches"
    assert counted(reader, "ocr")["inference_count"] >= len(sheets)


def test_an_empty_sheet_and_what_is_no_image(reader: Stack) -> None:
    outputs = read_by_grpc(reader, photographed(drawn(())))
    assert (outputs["TEXT"], outputs["SCORE"].shape, outputs["BOX"].shape) == ([], (0,), (0, 4, 2))
    refused = infer(reader.addresses, "edge", request_for(b"not an image"))
    assert (refused.code, refused.text) == (
        3,
        "step 1 (model 'ocr_decode_resize'): IMAGE: wanted an encoded image, got something that cannot be decoded",
    )
