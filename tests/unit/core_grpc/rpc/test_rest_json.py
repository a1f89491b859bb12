"""Documents: what is refused, and that both parsers agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core_grpc.errors import InvalidArgument
from core_grpc.rpc.rest_json import SMALL_BYTES, elements, kind_of, members, parse_document, plain, refuse_unknown
from tests.unit.core_grpc.rpc.rest_bodies import LIMITS, PADDING_BYTES

SIZES = pytest.mark.parametrize("padding_bytes", [0, PADDING_BYTES], ids=["small", "large"])


def refusal(body: bytes) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse_document(body, LIMITS)
    return caught.value.message


@SIZES
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"", "body is empty"),
        (b" \r\n\t", "body is empty"),
        (b"null", "body is null: wanted a JSON object"),
        (b"[]", "body is an array: wanted a JSON object"),
        (b"3", "body is 3: wanted a JSON object"),
        (b'"x"', "body is a string: wanted a JSON object"),
        (b'\xef\xbb\xbf{"a": 1}', "byte-order mark"),
        (b'{"a": 1} x', "body is not JSON: Extra data at character"),
        (b'{"a": 1} {"a": 1}', "body is not JSON: Extra data at character"),
        (b'{"a": 1,}', "body is not JSON"),
        (b"{'a': 1}", "body is not JSON"),
        (b'{"a": 1', "body is not JSON"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        (b"\x89PNG\xff\xfe", "body is not JSON: byte 0 is not UTF-8"),
        (b'{"a": 1, "a": 2}', "field 'a' is given twice"),
        (b'{"b": [{"a": 1, "a": 2}]}', "field 'a' is given twice"),
        (b'{"b": {"a": ":", "a": 2}}', "field 'a' is given twice"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": 1e400}', "beyond the range of FP64"),
        (b'{"a": ' + b"9" * 5000 + b"}", "beyond the range of FP64"),
        (b'{"a": ' + b"[" * 100_000 + b"1" + b"]" * 100_000 + b"}", "nested too deep: wanted at most 64 levels (max_json_depth)"),
    ],
)
def test_what_is_no_document(body: bytes, wanted: str, padding_bytes: int) -> None:
    if body.strip():
        body = body + b" " * padding_bytes
    got = refusal_anywhere(body)
    assert wanted in got
    assert "\n" not in got


def refusal_anywhere(body: bytes) -> str:
    """Large bodies show repeated members only where they are read."""
    with pytest.raises(InvalidArgument) as caught:
        walk(parse_document(body, LIMITS).root)
    return caught.value.message


def walk(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    try:
        return {name: walk(item) for name, item in members(value, "it").items()}
    except InvalidArgument as error:
        if "wanted an object" not in error.message:
            raise
    return [walk(item) for item in elements(value, "it")]


@SIZES
@pytest.mark.parametrize(
    "document",
    [
        {"a": [1, 2.5, "x", None, True], "b": {"c": {}, "d": []}},
        {"text": "a:b:c \u00e9 \U0001f600 \x00"},
        {f"key{n}": n for n in range(100)},
        {"big": 18446744073709551615, "low": -9223372036854775808},
    ],
)
def test_what_is_read(document: dict[str, Any], padding_bytes: int) -> None:
    body = json.dumps(document).encode() + b" " * padding_bytes
    assert walk(parse_document(body, LIMITS).root) == document


@SIZES
def test_bare_tokens_of_numbers_that_are_not_finite(padding_bytes: int) -> None:
    root = parse_document(b'{"a": [NaN, Infinity, -Infinity]}' + b" " * padding_bytes, LIMITS).root
    assert [repr(number) for number in plain(root["a"])] == ["nan", "inf", "-inf"]


def test_a_surrogate_pair_is_one_character() -> None:
    assert parse_document(b'{"a": NaN, "b": "\\ud83d\\ude00"}', LIMITS).root["b"] == "\U0001f600"


def test_a_huge_body_is_not_given_to_the_slow_parser() -> None:
    body = b'{"a": [' + b"1.5," * (5 << 20) + b"NaN]}"
    assert "only bodies up to 16 MiB may have" in refusal(body)


def test_the_sizes_lie_on_both_sides_of_the_threshold() -> None:
    assert PADDING_BYTES > SMALL_BYTES


def test_unknown_fields_are_named() -> None:
    with pytest.raises(InvalidArgument, match=r"^body: unknown field 'foo', wanted a, b$"):
        refuse_unknown({"a": 1, "foo": 2}, frozenset({"a", "b"}), "body")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (float("nan"), "NaN"),
        ("secret", "a string"),
        ([1], "an array"),
        ({}, "an object"),
        (1 << 200, "a very long number"),
    ],
)
def test_kinds(value: Any, words: str) -> None:
    assert kind_of(value) == words
