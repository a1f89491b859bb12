"""Log settings take effect on what is really written."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from core_grpc.errors import InvalidArgument, Unsupported
from core_grpc.observability.log_settings import LogControl, LogSettings
from core_grpc.observability.logging import LineFormatter

NAMES = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@pytest.fixture(params=["info"])
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What the root logger writes, which is set up as the server sets it up and put back afterwards."""
    root = logging.getLogger()
    level = root.level
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    root.addHandler(handler)
    root.setLevel(request.param.upper())
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)
    for other in root.handlers:  # pytest's own, which outlive the test.
        other.filters = [item for item in other.filters if not isinstance(item, LogControl)]


def lines(stream: io.StringIO) -> list[str]:
    """The levels that are written of one record each, all levels."""
    stream.seek(0)
    stream.truncate()
    for level in NAMES.values():
        logging.getLogger("core_grpc.somewhere").log(level, "text")
    return [line.split()[1].lower() for line in stream.getvalue().splitlines()]


def test_levels_are_switched_one_by_one(written: io.StringIO) -> None:
    control = LogControl()
    assert control.settings == LogSettings()
    assert lines(written) == ["info", "warning", "error"]
    control.update({"log_verbose_level": 1})
    assert lines(written) == ["debug", "info", "warning", "error"]
    control.update({"log_info": False, "log_warning": False})
    assert lines(written) == ["debug", "error"]
    control.update({"log_error": False, "log_verbose_level": 0, "log_warning": True})
    assert lines(written) == ["warning"]


@pytest.mark.parametrize("written", ["debug", "warning", "error"], indirect=True)
def test_begins_with_the_level_that_the_process_has(written: io.StringIO) -> None:
    before = lines(written)
    control = LogControl()
    control.update({"log_format": "default"})
    assert lines(written) == before


def test_the_format_says_which_clock(written: io.StringIO) -> None:
    control = LogControl()
    for name, pattern in (("ISO8601", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO"), ("default", r"[\d-]+T[\d:]+\.\d{3} INFO")):
        control.update({"log_format": name})
        lines(written)
        assert re.match(pattern, written.getvalue())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("log_file", "x", Unsupported),
        ("log_info", "yes", InvalidArgument),
        ("log_info", 1, InvalidArgument),
        ("log_verbose_level", True, InvalidArgument),
        ("log_verbose_level", -1, InvalidArgument),
        ("log_verbose_level", 1 << 32, InvalidArgument),
        ("log_format", "xml", InvalidArgument),
        ("log_format", 1, InvalidArgument),
        ("nonsense", 1, InvalidArgument),
    ],
)
def test_an_update_is_whole_or_not_at_all(written: io.StringIO, name: str, value: bool | int | str, error: type[Exception]) -> None:
    control = LogControl()
    with pytest.raises(error):
        control.update({"log_warning": False, name: value})
    assert control.settings == LogSettings()
    assert lines(written) == ["info", "warning", "error"]
