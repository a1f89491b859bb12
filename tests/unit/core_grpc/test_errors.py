"""The error tree, its table, and what a message may look like."""

from __future__ import annotations

import inspect

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_grpc import errors
from core_grpc.errors import STATUS, GatewayError, InvalidArgument, InvalidTensor, NotFound, StatusCode, one_line, quoted


def _subclasses(kind: type[GatewayError]) -> set[type[GatewayError]]:
    return {kind}.union(*(_subclasses(child) for child in kind.__subclasses__()))


def test_every_error_has_a_row_and_every_row_an_error() -> None:
    ours = {kind for kind in _subclasses(GatewayError) - {GatewayError} if kind.__module__ == errors.__name__}
    assert ours == set(STATUS)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = set((inspect.getdoc(errors) or "").replace("└──", "├──").split("├── ")[1:])
    assert {line.split()[0] for line in drawn} == {kind.__name__ for kind in STATUS}


def test_status_numbers_are_grpcs() -> None:
    assert {code.name: code.value for code in StatusCode} == {code.name: code.value[0] for code in grpc.StatusCode}


def test_no_error_has_a_success_status() -> None:
    assert StatusCode.OK not in STATUS.values()


def test_a_tensor_error_is_caught_as_an_argument_error() -> None:
    with pytest.raises(InvalidArgument):
        raise InvalidTensor("input 'x': wanted FP32, got INT64")


def test_the_message_is_the_text() -> None:
    assert NotFound("model 'a': not found").message == "model 'a': not found"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\\nlines"),
        ("tab\tnul\x00esc\x1b", "tab\\tnul\\x00esc\\x1b"),
        ("carriage\r\nset-cookie: x", "carriage\\r\\nset-cookie: x"),
        ("ümlaut 猫", "ümlaut 猫"),
        ("bidi\u202egnp", "bidi\\u202egnp"),
        ("surrogate\udc80", "surrogate\\udc80"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert GatewayError(text).message == shown


def test_long_texts_are_capped() -> None:
    message = NotFound("x" * 5000).message
    assert len(message) == 1000
    assert message.endswith("…")


def test_names_are_quoted_and_capped() -> None:
    assert quoted("in\nput") == "'in\\nput'"
    assert quoted("n" * 500) == "'" + "n" * 99 + "…'"


@given(st.text(alphabet=st.characters(), max_size=3000))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    message = GatewayError(text).message
    assert message.isprintable()
    assert len(message.splitlines()) <= 1
    message.encode()
    # An escape is at most ten characters, so a header of 16 KiB always holds it.
    assert len(message) <= 10 * 1000
