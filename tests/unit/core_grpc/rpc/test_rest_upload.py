"""Uploads."""

from __future__ import annotations

import logging

import pytest

from core_grpc.errors import GatewayError, InvalidArgument, LimitExceeded
from core_grpc.rpc.rest_predict import PredictCall
from core_grpc.rpc.rest_upload import decode_upload, query_options
from core_grpc.types import Datatype, ModelSpec, TensorSpec
from tests.unit.core_grpc.rpc.rest_bodies import one_input, two_inputs

IMAGES = one_input(shape=(-1, 3, 8, 8), accepts="image", labels=("cat", "dog"))
FORM = 'multipart/form-data; boundary="b0"'
PHOTO = b"\xff\xd8 photo \r\n--b \r\n"


def part(name: str, data: bytes, *headers: str, filename: str | None = None) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return "\r\n".join(["--b0", disposition, *headers, "", ""]).encode() + data + b"\r\n"


def upload(*parts: bytes, spec: ModelSpec = IMAGES, content_type: str = FORM, **query: str) -> PredictCall:
    return decode_upload(spec, content_type, b"".join(parts) + b"--b0--\r\n", query, 7.0)


def refusal(*parts: bytes, spec: ModelSpec = IMAGES, content_type: str = FORM, kind: type[GatewayError] = InvalidArgument) -> str:
    with pytest.raises(kind) as caught:
        upload(*parts, spec=spec, content_type=content_type)
    return caught.value.message


def names(call: PredictCall) -> list[str]:
    return [output.name for output in call.request.outputs]


@pytest.mark.parametrize("name", ["image", "file", "X"])
def test_a_file(name: str) -> None:
    call = upload(part(name, PHOTO, "Content-Type: image/jpeg", filename="photo.jpg"))
    tensor = call.request.inputs["X"]
    assert (tensor.datatype, tensor.array.tolist(), call.request.deadline) == ("BYTES", [[PHOTO]], 7.0)
    assert (names(call), call.shown, call.top_k) == (["Y"], (), 0)


def test_several_files_are_several_rows() -> None:
    call = upload(*(part("image", PHOTO + bytes([n]), filename="") for n in range(3)))
    assert call.request.inputs["X"].array.tolist() == [[PHOTO + bytes([n])] for n in range(3)]


def test_options_of_a_form_come_before_those_of_the_query() -> None:
    call = upload(part("top_k", b"3"), part("image", PHOTO, filename="a"), part("outputs", b" Z , Y"), top_k="9")
    assert (call.top_k, names(call), call.shown) == (3, ["Z", "Y"], ("Z", "Y"))


def test_the_labelled_output_is_asked_for_beside_those_that_are_shown() -> None:
    call = upload(part("outputs", b"Z"), part("image", PHOTO, filename="a"))
    assert (names(call), call.shown) == (["Z", "Y"], ("Z",))


def test_a_model_without_labels_shows_all() -> None:
    call = upload(part("image", PHOTO, filename="a"), spec=one_input(accepts="image"))
    assert (names(call), call.shown) == ([], None)


@pytest.mark.parametrize("content_type", ["image/jpeg", "application/octet-stream"])
def test_a_bare_image(content_type: str) -> None:
    call = decode_upload(IMAGES, content_type, PHOTO, {"top_k": "-1", "outputs": "Y"})
    assert call.request.inputs["X"].array.tolist() == [[PHOTO]]
    assert (call.top_k, call.shown) == (-1, ("Y",))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([], "the form has no file"),
        ([part("top_k", b"1")], "the form has no file: wanted one named 'image', 'audio', 'file' or 'X'"),
        ([part("photo", PHOTO, filename="a")], "form part 'photo': wanted a file named"),
        ([part("image", b"photo.jpg")], "form part 'image' is text: wanted a file (with curl: -F image=@photo.jpg)"),
        ([part("image", b"", filename="a")], "image 0 of the upload is empty"),
        ([part("image", PHOTO, filename="a"), part("top_k", b"many")], "top_k: wanted an integer"),
        ([part("image", PHOTO, filename="a"), part("top_k", b"-2")], "top_k: wanted an integer"),
        ([part("image", PHOTO, filename="a"), part("outputs", b"\xff")], "form part 'outputs': wanted UTF-8 text"),
    ],
)
def test_forms_that_are_none(parts: list[bytes], wanted: str) -> None:
    assert wanted in refusal(*parts)


@pytest.mark.parametrize("body", [b"", b"\x89PNG\xff\xfe", b"--b0\r\n", part("image", PHOTO, filename="a"), b"--other--\r\n"])
def test_bodies_that_do_not_end_with_the_boundary(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="multipart/form-data"):
        decode_upload(IMAGES, FORM, body, {})


def test_a_form_without_a_boundary() -> None:
    assert "has no boundary" in refusal(content_type="multipart/form-data")
    assert "not multipart/form-data" in refusal(content_type="multipart/form-data; boundary=" + "x" * 500)


def test_too_many_parts() -> None:
    assert "at most 1024" in refusal(*[part("top_k", b"1")] * 1025, kind=LimitExceeded)


@pytest.mark.parametrize("spec", [one_input(), two_inputs()])
def test_models_that_take_no_images(spec: ModelSpec) -> None:
    assert "model 'm' takes no uploads" in refusal(spec=spec)


def test_optional_inputs_do_not_hinder() -> None:
    optional = TensorSpec("size", Datatype.INT32, (-1, 1), optional=True)
    spec = ModelSpec("m", "1", "identity", 8, (*IMAGES.inputs, optional), IMAGES.outputs)
    assert upload(part("image", PHOTO, filename="a"), spec=spec).request.inputs.keys() == {"X"}


def test_the_payload_stays_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    decode_upload(IMAGES, FORM, part("image", b"SECRET", filename="a") + b"--b0--\r\nSECRET", {})
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/v1/models/m:predict", {}),
        ("/v1/models/m:predict?top_k=3&utm=1&outputs=a%2Cb", {"top_k": "3", "outputs": "a,b"}),
        ("/v1/models/m:predict?top_k=3&top_k=4", {"top_k": "4"}),
        ("/x?" + "a=1&" * 5000 + "top_k=1", {}),
    ],
)
def test_options_in_the_query(path: str, options: dict[str, str]) -> None:
    assert query_options(path) == options
