"""Uploads: photographs and recordings as a browser's form or ``curl -F`` sends them, for a model with one input of images or of BYTES.

``multipart/form-data``: file parts named like the input, ``image``, ``audio`` or ``file``, several being several rows, and the text parts
``top_k`` and ``outputs`` (names, separated by commas). Or a bare body of type ``image/*`` or ``audio/*``, with ``top_k`` and ``outputs`` in
the query; on ``:predict`` also a body of type ``application/octet-stream`` that is no JSON object, and one without a type, or with the one
that ``curl --data-binary`` sets, that begins like JPEG or PNG and like no text.

``:predict`` answers an upload with ``classes``, and with ``outputs`` only for those that were asked for: a thousand probabilities
are noise to whoever uploads a photograph. A model without labels answers all its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from core_grpc.errors import InvalidArgument, LimitExceeded, quoted
from core_grpc.rpc.content_types import is_form
from core_grpc.rpc.raw_tensors import bytes_array
from core_grpc.rpc.rest_predict import AnswerForm, PredictCall, checked_top_k
from core_grpc.types import Datatype, InferRequest, ModelSpec, RequestedOutput, Tensor, TensorSpec

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks  # Exists for type checkers only.

_FILE_NAMES = frozenset({"image", "audio", "file"})
_OPTION_NAMES = frozenset({"top_k", "outputs"})
_MOST_PARTS = 1024
_OPTION_BYTES = 4096


@dataclass(slots=True)
class _Part:
    headers: dict[str, bytes] = field(default_factory=dict)
    data: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Upload:
    """The files of an upload, a row each, and its options."""

    files: tuple[bytes, ...]
    options: Mapping[str, str]
    """``top_k`` and ``outputs``, as text."""


def decode_upload(spec: ModelSpec, content_type: str, body: bytes, query: Mapping[str, str], deadline: float | None = None) -> PredictCall:
    """The call in an upload.

    Args:
        content_type: ``multipart/form-data`` with its boundary; any other type is one bare file.
        query: ``top_k`` and ``outputs`` from the URL; a form's own come first.

    Raises:
        InvalidArgument: the model takes no uploads, or the form is broken or has a part that nobody reads.
    """
    item = _upload_input(spec)
    upload = _parse_form(item, content_type, body) if is_form(content_type) else Upload((body,), {})
    for position, file in enumerate(upload.files):
        if not file:
            kind = "image" if item.accepts == "image" else "file"
            raise InvalidArgument(f"{kind} {position} of the upload is empty: wanted an encoded {kind}")
    options = {**query, **upload.options}
    # A file is one element: all dimensions beyond the first are 1.
    others = 1 if item.accepts == "image" else max(len(item.shape) - 1, 0)
    tensor = Tensor(Datatype.BYTES, bytes_array(upload.files, (len(upload.files), *[1] * others)))
    shown = tuple(name.strip() for name in options.get("outputs", "").split(",") if name.strip())
    labelled = next((output.name for output in spec.outputs if output.labels), None)
    wanted = (*shown, *((labelled,) if labelled and labelled not in shown else ()))
    request = InferRequest(
        spec.name, spec.version, {item.name: tensor}, outputs=tuple(RequestedOutput(name) for name in wanted), deadline=deadline
    )
    return PredictCall(request, AnswerForm.OUTPUTS, _top_k(options), shown if labelled else None)


def query_options(path: str) -> dict[str, str]:
    """``top_k`` and ``outputs`` from the query of a URL's path; all other parameters are somebody else's."""
    query = parse_qs(path.partition("?")[2], max_num_fields=100) if path.count("&") < 100 else {}
    return {name: query[name][-1] for name in _OPTION_NAMES if name in query}


def _top_k(options: Mapping[str, str]) -> int:
    try:
        return checked_top_k(int(options.get("top_k", "0")))
    except ValueError as error:
        raise InvalidArgument("top_k: wanted an integer, got other text") from error


def takes_uploads(spec: ModelSpec) -> bool:
    """Whether the model has exactly one input of images or of BYTES and needs no other."""
    return len(_fillable(spec)) == 1 and all(item.optional or item in _fillable(spec) for item in spec.inputs)


def _fillable(spec: ModelSpec) -> list[TensorSpec]:
    """The inputs that a file can be."""
    images = [item for item in spec.inputs if item.accepts == "image"]
    return images or [item for item in spec.inputs if item.datatype is Datatype.BYTES]


def _upload_input(spec: ModelSpec) -> TensorSpec:
    if not takes_uploads(spec):
        raise InvalidArgument(
            f"model '{spec.name}' takes no uploads: they need exactly one input, and that of images or of BYTES; "
            "send JSON or binary tensors"
        )
    return _fillable(spec)[0]


def _parse_form(item: TensorSpec, content_type: str, body: bytes) -> Upload:
    files: list[bytes] = []
    options: dict[str, str] = {}
    for part in _parse_parts(content_type, body):
        _, disposition = parse_options_header(part.headers.get("content-disposition", b"").decode("latin-1"))
        name = disposition.get(b"name", b"").decode("utf-8", "replace")
        data = b"".join(part.data)
        if name in _OPTION_NAMES:
            options[name] = _option(name, data)
        elif name not in _FILE_NAMES and name != item.name:
            raise InvalidArgument(
                f"form part {quoted(name)}: wanted a file named 'image', 'audio', 'file' or {quoted(item.name)}, or top_k, or outputs"
            )
        elif b"filename" not in disposition and "content-type" not in part.headers:
            raise InvalidArgument(f"form part {quoted(name)} is text: wanted a file (with curl: -F {name}=@photo.jpg)")
        else:
            files.append(data)
    if not files:
        raise InvalidArgument(f"the form has no file: wanted one named 'image', 'audio', 'file' or {quoted(item.name)}")
    return Upload(tuple(files), options)


def _option(name: str, data: bytes) -> str:
    try:
        return data[:_OPTION_BYTES].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"form part {quoted(name)}: wanted UTF-8 text") from error


def _parse_parts(content_type: str, body: bytes) -> list[_Part]:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise InvalidArgument("content type multipart/form-data has no boundary")
    collector = _PartCollector()
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidArgument("body is not multipart/form-data with the boundary that its content type names") from error
    if not collector.is_complete:
        raise InvalidArgument("body is not complete multipart/form-data: the closing boundary is missing")
    return collector.parts


class _PartCollector:
    """Gathers what the parser finds."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.is_complete = False
        self._field = b""
        self._value = b""

    def callbacks(self) -> MultipartCallbacks:
        """The parser's side."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_field,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_part_data": self._add_data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) == _MOST_PARTS:
            raise LimitExceeded(f"the form has too many parts: wanted at most {_MOST_PARTS}")
        self.parts.append(_Part())

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self.parts[-1].headers[self._field.decode("latin-1").lower()] = self._value
        self._field = self._value = b""

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].data.append(data[start:end])

    def _end(self) -> None:
        self.is_complete = True
