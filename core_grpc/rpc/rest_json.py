"""JSON documents: the bytes of a body to a tree whose large arrays of numbers never become Python lists.

Large bodies are parsed by simdjson; their arrays and objects are proxies over its tape, and ``rest_numbers.py`` takes numbers out of
them in one copy. Small ones are parsed by orjson, whose Python values cost less than proxies. What either refuses goes to the
standard library's parser, for two reasons: it reads the bare ``NaN``, ``Infinity`` and ``-Infinity`` that Triton and its clients write,
and it says where a document is wrong. Such bodies cost several times more.

Chosen where JSON leaves it open: a member given twice is refused by name; so are a byte-order mark, anything after the document,
a lone surrogate in a string, and a number beyond FP64.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import orjson
import simdjson

from core_grpc.errors import InvalidArgument, quoted
from core_grpc.settings import LimitsSettings

ARRAYS = (list, simdjson.Array)
OBJECTS = (dict, simdjson.Object)
"""What arrays and objects are in a document. As constants: ``isinstance`` against ``list | Array`` makes the union anew each time."""

SMALL_BYTES = 8192
"""Bodies up to this size are parsed into Python values: below it proxies and their set-up cost more than they save."""

_MOST_PROXIES = 64
"""Members of one object that are looked up one by one; more are no request of ours, or a model's own parameters."""

_MAX_INTEGER_DIGITS = 400
_KEPT_BYTES = 4 << 20
"""Bodies up to this size share their thread's parser, which then keeps a few times as much memory."""

_SLOW_BYTES = 16 << 20
"""The largest body for the standard library's parser, which takes ten times its size in memory."""

_BLOCK_BYTES = 1 << 16
_NO_BRACKETS = bytes(set(range(256)) - set(b"[],"))

_MOST_ARRAYS = 10_000
_BLANKS = 32
"""Characters behind a bracket among which the next token is looked for."""

_thread = threading.local()

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonDocument:
    """A parsed body whose root is an object."""

    def __init__(self, body: bytes, root: dict[str, Any] | simdjson.Object, limits: LimitsSettings) -> None:
        self._body = body
        self.root = members(root, "body")
        self.limits = limits
        self._checked_to = 0

    def is_nested_next(self, brackets: bytes) -> bool:
        """Whether the next array that opens like ``brackets`` goes on like it: the proof that nested numbers are not ragged.

        Arrays must be asked for in the document's order. A wrong no is possible (brackets in strings), a wrong yes is not for an array
        whose numbers were counted.
        """
        start = self._brackets.find(brackets[: len(brackets) - len(brackets.lstrip(b"[")) + 1], self._checked_to)
        if start < 0 or not self._brackets.startswith(brackets, start):
            return False
        self._checked_to = start + len(brackets)
        return True

    @cached_property
    def is_flat(self) -> bool:
        """Whether it is proven that only arrays of objects have other arrays in them."""
        body = self._body
        opening = body.find(b"[")
        for _ in range(_MOST_ARRAYS):
            following = body.find(b"[", opening + 1)
            if following < 0:
                return True
            if body.find(b"]", opening, following) < 0 and body[opening + 1 : opening + _BLANKS].lstrip()[:1] != b"{":
                return False
            opening = following
        return False

    @cached_property
    def _brackets(self) -> bytes:
        """The body's square brackets and commas, in order: what remains of nested numbers when the numbers are left out."""
        body = self._body
        # In blocks, because each result first takes as much memory as what it is made from.
        blocks = (body[start : start + _BLOCK_BYTES] for start in range(0, len(body), _BLOCK_BYTES))
        return b"".join(block.translate(None, _NO_BRACKETS) for block in blocks)


def parse_document(body: bytes, limits: LimitsSettings) -> JsonDocument:
    """The document in ``body``.

    Raises:
        InvalidArgument: it is not one JSON object in plain UTF-8, or is nested deeper than any accepted body can be.
    """
    if not body or body.isspace():
        raise InvalidArgument("body is empty: wanted a JSON object")
    if body.startswith(_BYTE_ORDER_MARK):
        raise InvalidArgument("body begins with a byte-order mark: wanted plain UTF-8")
    root = _parsed_small(body, limits) if len(body) <= SMALL_BYTES else _parsed_large(body, limits)
    if not isinstance(root, OBJECTS):
        raise InvalidArgument(f"body is {kind_of(root)}: wanted a JSON object")
    return JsonDocument(body, root, limits)


def members(value: Any, where: str) -> dict[str, Any]:
    """The members of an object.

    Raises:
        InvalidArgument: ``value`` is not an object, or has a member twice.
    """
    if type(value) is dict:
        return value
    if not isinstance(value, simdjson.Object):
        raise InvalidArgument(f"{where}: wanted an object, got {kind_of(value)}")
    names = list(value)
    _refuse_repeats(names)
    # A look-up walks the object, and only a look-up gives proxies (``items`` makes lists of all numbers).
    return {name: value[name] for name in names} if len(names) <= _MOST_PROXIES else value.as_dict()


def elements(value: Any, where: str) -> list[Any]:
    """The elements of a short array, such as the tensors of a request.

    Raises:
        InvalidArgument: ``value`` is not an array.
    """
    if type(value) is list:
        return value
    if isinstance(value, simdjson.Array):
        return list(value)
    raise InvalidArgument(f"{where}: wanted an array, got {kind_of(value)}")


def text(value: Any, where: str) -> str:
    """A string.

    Raises:
        InvalidArgument: ``value`` is something else.
    """
    if type(value) is str:
        return value
    raise InvalidArgument(f"{where}: wanted a string, got {kind_of(value)}")


def refuse_unknown(given: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Refuses members that nobody reads, by name: most are misspelt."""
    if not given.keys() <= known:
        unknown = next(key for key in given if key not in known)
        raise InvalidArgument(f"{where}: unknown field {quoted(unknown)}, wanted {', '.join(sorted(known))}")


def plain(value: Any) -> Any:
    """``value`` with proxies turned into Python lists and dicts."""
    if isinstance(value, simdjson.Array):
        return value.as_list()
    return value.as_dict() if isinstance(value, simdjson.Object) else value


def kind_of(value: Any) -> str:
    """What a JSON value is, in words fit for an error text; numbers are shown, texts are not."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        shown = repr(value) if isinstance(value, float) or abs(value) < 1 << 128 else "a very long number"
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(shown, shown)
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, OBJECTS) else "an array"


def _parsed_small(body: bytes, limits: LimitsSettings) -> Any:
    try:
        root = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _parsed_slowly(body, limits)
    # orjson keeps the last of repeated members. Each member has one colon, so as many colons as members is proof that none was lost;
    # more may also be colons in strings, which the slow parser tells apart.
    if type(root) is dict and body.count(b":") != _count_members(root):
        return _parsed_slowly(body, limits)
    return root


def _parsed_large(body: bytes, limits: LimitsSettings) -> Any:
    if len(body) <= _KEPT_BYTES:
        try:
            return _kept_parser().parse(body)
        except (ValueError, RuntimeError):
            pass  # Refused, or the parser's last document is still in use.
    try:
        return simdjson.Parser().parse(body)
    except (ValueError, RuntimeError):
        return _parsed_slowly(body, limits)


def _kept_parser() -> simdjson.Parser:
    """This thread's parser: the memory of a new one costs as much as parsing."""
    if not hasattr(_thread, "parser"):
        _thread.parser = simdjson.Parser()
    parser: simdjson.Parser = _thread.parser
    return parser


def _parsed_slowly(body: bytes, limits: LimitsSettings) -> Any:
    """The document by the standard library's parser, or the reason why there is none."""
    if len(body) > _SLOW_BYTES:
        raise InvalidArgument(
            "body is not JSON, or has NaN or Infinity, which JSON does not know and only bodies up to "
            f"{_SLOW_BYTES >> 20} MiB may have: send binary data"
        )
    try:
        decoded = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"body is not JSON: byte {error.start} is not UTF-8") from error
    try:
        root = _DECODER.decode(decoded)
    except RecursionError as error:
        raise InvalidArgument(f"body is nested too deep: wanted at most {limits.max_json_depth} levels (max_json_depth)") from error
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"body is not JSON: {error.msg} at character {error.pos} (line {error.lineno})") from error
    if "\\u" in decoded and _LONE_SURROGATE.search(json.dumps(root, ensure_ascii=False)):
        raise InvalidArgument("body has a string with a lone surrogate, which is no character: wanted Unicode text, or binary data")
    return root


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        _refuse_repeats([name for name, _ in pairs])
    return unique


def _refuse_repeats(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"body: field {quoted(name)} is given twice in one object")
        seen.add(name)


def _count_members(value: Any) -> int:
    """Members of all objects; arrays that do not begin with a container are taken for numbers and passed over."""
    count = len(value) if type(value) is dict else 0
    for child in value.values() if type(value) is dict else value:
        kind = type(child)
        if kind is dict or (kind is list and child and type(child[0]) in (dict, list)):
            count += _count_members(child)
    return count


def _finite(literal: str) -> float:
    number = float(literal)
    if number in (float("inf"), float("-inf")):
        raise InvalidArgument("body has a number beyond the range of FP64")
    return number


def _integer(literal: str) -> int:
    # Python's own limit on digits (a guard against quadratic conversion) would answer with a text about Python.
    if len(literal) > _MAX_INTEGER_DIGITS:
        raise InvalidArgument("body has a number beyond the range of FP64")
    return int(literal)


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_float=_finite, parse_int=_integer)
