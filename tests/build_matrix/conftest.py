"""The table of what was built, printed when all is."""

from __future__ import annotations

import pytest

from tests.build_matrix.table import Table

_TABLE = Table()


@pytest.fixture
def table() -> Table:
    """What the run has built so far."""
    return _TABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The Markdown of docs/tensorrt.md."""
    if _TABLE.rows:
        terminalreporter.section("built by TensorRT-RTX: seconds of the command and size of the plan")
        for line in _TABLE.lines():
            terminalreporter.write_line(line)
